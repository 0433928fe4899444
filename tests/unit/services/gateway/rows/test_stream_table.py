"""The table of rows writes what Python would, counts what Python would, and leaves all else to it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.event_stream import TextFrame
from services.gateway.rows.row_sink import ChunkedBody
from services.gateway.rows.stream_table import StreamTable, Unchecked
from services.gateway.scope.recent_latencies import RecentLatencies
from shared.bus import codec
from shared.errors import ProtocolError
from shared.messages import Cancel, Mark, Text
from shared.sampling.parameters import TokenLogprob
from shared.telemetry.metrics import ITL_BUCKETS, observe_many
from tests.support.http2_wire import DATA
from tests.support.row_stream import ENVELOPE, Row, RowStream, called, message, take

TEXTS = (
    "",
    " word",
    "äö",
    "\u20ac\u2028",
    "\U0001f600!",
    '"\\/\b\f\n\r\t\0\x1f\x7f',
    "a" * 300,
)
MOST_ID = (1 << 32) - 1


@pytest.fixture
def table() -> StreamTable:
    return StreamTable()


def followed(table: StreamTable, *streams: RowStream, **fields: Any) -> None:
    for each in streams:
        table.follow(each.request_id, each.stream(**fields))


def random_rows(stream: RowStream, seed: int, count: int = 60) -> Iterator[Row]:
    rng = random.Random(seed)
    for _ in range(count):
        ids = tuple(rng.choice((0, 1, 127, 128, 70_000, MOST_ID)) for _ in range(rng.randint(1, 4)))
        yield stream.row(ids, rng.choice(TEXTS))


def test_a_call_gets_the_bytes_that_protobuf_makes(table: StreamTable) -> None:
    end = called()
    stream = RowStream("r", end)
    followed(table, stream)
    for request_id, position, ids, text in random_rows(stream, 1):
        assert take(table, message((request_id, position, ids, text))) == []
        delta = pb.TextDelta(position=position, token_ids=ids, text=text)
        made = pb.GenerateEvent(text=delta).SerializeToString()
        (frame,) = end.said()
        assert (frame.kind, frame.payload) == (DATA, b"\0" + len(made).to_bytes(4, "big") + made)


def test_an_event_stream_gets_the_bytes_that_json_makes(table: StreamTable) -> None:
    frame = TextFrame(lambda text: {"choices": [{"text": text}], "model": "ä"})
    before, after = frame.parts
    stream = RowStream("r", resume_token="t")
    sink = stream.events_sink(before=before, after=after)
    followed(table, stream, sink=sink)
    tokens = chars = 0
    for row in random_rows(stream, 2):
        assert take(table, message(row)) == []
        tokens, chars = tokens + len(row[2]), chars + len(row[3])
        assert (stream.told_tokens, stream.told_chars) == (tokens, chars)
        wanted = [f"id: t~{tokens}~{chars}\n".encode() + frame.around(row[3])] if row[3] else []
        assert stream.events == wanted
        stream.events.clear()


def test_text_is_json_whatever_it_is_of(table: StreamTable) -> None:
    stream = RowStream("r")
    followed(table, stream)
    for start in (*range(0, 0xD800, 997), *range(0xE000, 0x10FFFF, 9973)):
        text = "".join(map(chr, range(start, min(start + 40, 0xD800 if start < 0xD800 else 0x110000))))
        assert take(table, message(stream.row((1,), text))) == []
        assert stream.events.pop() == b"data: " + json.dumps(text).encode() + b"\n\n"


def test_a_chunk_is_an_event_with_its_length_until_the_connection_closes(table: StreamTable) -> None:
    stream = RowStream("r")
    chunks = ChunkedBody(lambda: not stream.takes, ((stream, "tokens"), (stream, "chars")))
    followed(table, stream, sink=stream.events_sink(put=stream.events.append, chunks=chunks))
    assert take(table, message(stream.row((1,), "a" * 20))) == []
    assert stream.events == [b"1e\r\ndata: " + json.dumps("a" * 20).encode() + b"\n\n\r\n"]
    assert (stream.tokens, stream.chars) == (1 + 36, 20 + 36)
    stream.takes = False
    assert take(table, message(stream.row((1,), "a"))) == [0]
    assert len(stream.events) == 1


def test_a_row_counts_wherever_it_is_to_be_counted(table: StreamTable) -> None:
    stream = RowStream("r")
    followed(table, stream)
    assert take(table, message(stream.row((5, 6), "ä"), ("r", 10, (7,), "b")), 4.5) == []
    assert (stream.ids, stream.texts) == ([1, 5, 6, 7], ["x", "ä", "b"])
    assert (stream.tokens, stream.chars, stream.drawn, stream.draws) == (3, 2, 3, [])
    assert (stream.kept, stream.kept_tokens) == ([(8, (5, 6), "ä"), (10, (7,), "b")], 3)
    assert (stream.came_s, stream.delivered_s) == (4.5, 4.5)


def test_what_tenants_have_is_told_where_several_share(table: StreamTable) -> None:
    stream = RowStream("r")
    followed(table, stream)
    take(table, message(stream.row((5, 6), "a")), alone=False)
    assert (stream.draws, stream.drawn, stream.tokens) == ([2], 0, 2)


def test_each_connection_is_sent_once_for_a_message(table: StreamTable) -> None:
    end = called()
    stream, other = RowStream("r", end), RowStream("o", called())
    followed(table, stream, other)
    take(table, message(stream.row((5,), "a"), other.row((5,), "b"), ("r", 9, (6,), "c")))
    assert (stream.flushes, other.flushes) == (1, 1)
    assert len(end.said()) == 2


def test_a_client_without_room_gets_what_is_written_and_the_next_row_is_left(table: StreamTable) -> None:
    end = called()
    stream = RowStream("r", end)
    followed(table, stream)
    end.hear()
    count = 0
    while stream.has_room:
        assert take(table, message(stream.row((5,), "a" * 4000))) == []
        count += 1
        assert count < 10_000
    assert take(table, message(stream.row((5,), "a"))) == [0]
    assert len(stream.ids) == count + 1


@pytest.mark.parametrize(
    "change",
    [
        {"is_open": False},
        {"is_open": None},
        {"has_room": False},
        {"takes": False},
        {"kept_tokens": 1000},
    ],
    ids=str,
)
def test_a_row_is_left_with_nothing_done_where_a_term_does_not_hold(
    table: StreamTable, change: dict[str, Any]
) -> None:
    stream = RowStream("r")
    followed(table, stream)
    for name, value in change.items():
        setattr(stream, name, value)
    assert take(table, message(stream.row((5,), "a"))) == [0]
    assert (stream.ids, stream.texts, stream.events, stream.came_s) == ([1], ["x"], [], 0.0)


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (("other", 8, (5,), "a"), {}),
        (("r", 7, (5,), "a"), {}),
        (("r", 9, (5,), "a"), {}),
        (("r", 8, (), "a"), {}),
        (("r", 8, (5,), "a"), {"epochs": (2,)}),
        (("r", 8, (5,), "a"), {"finish": ("stop",)}),
    ],
    ids=["unknown", "again", "gap", "no ids", "epoch", "end"],
)
def test_a_row_that_is_not_plain_is_left(table: StreamTable, row: Row, columns: dict[str, Any]) -> None:
    stream = RowStream("r")
    followed(table, stream)
    assert take(table, message(row, **columns)) == [0]
    assert stream.events == []


def test_rows_of_another_sender_and_of_who_has_left_are_left(table: StreamTable) -> None:
    stream = RowStream("r")
    followed(table, stream)
    row = message(stream.row((5,), "a"))
    assert table.take(row, "detokenizer-1", 2.0, alone=True, checked=False) == [0]
    table.leave("r")
    table.leave("r")
    assert (take(table, row), len(table)) == ([0], 0)


def test_what_is_behind_a_row_that_is_left_is_left_too(table: StreamTable) -> None:
    stream, other = RowStream("r"), RowStream("o")
    followed(table, stream, other)
    rows = stream.row((5,), "a"), other.row((5,), "b"), ("r", 9, (6,), "c")
    assert take(table, message(*rows, finish=("", "", ""), epochs=(2, 1, 1))) == [0, 2]
    assert (stream.events, other.events) == ([], [b'data: "b"\n\n'])


@pytest.mark.parametrize(
    "extra",
    [{"marks": ((), (Mark("decode.queue", 3),))}, {"logprobs": ((), (TokenLogprob(5, -0.5, ()),))}],
    ids=["marks", "logprobs"],
)
def test_what_is_not_judged_here_is_judged_first(table: StreamTable, extra: dict[str, Any]) -> None:
    stream, other = RowStream("r"), RowStream("o")
    followed(table, stream, other)
    data = message(stream.row((5,), "a"), other.row((5,), "b"), **extra)
    with pytest.raises(Unchecked):
        take(table, data)
    assert stream.events == []
    assert take(table, data, checked=True) == [1]
    assert (stream.events, other.events) == ([b'data: "a"\n\n'], [])


def test_an_error_of_who_counts_is_raised_and_what_was_written_is_sent(table: StreamTable) -> None:
    stream = RowStream("r", called())
    followed(table, stream)
    del stream.drawn
    with pytest.raises(AttributeError, match="drawn"):
        take(table, message(stream.row((5,), "a")))
    assert stream.flushes == 1


def test_who_writes_may_have_the_stream_left(table: StreamTable) -> None:
    stream = RowStream("r")

    def put(_: bytes) -> bool:
        table.leave("r")
        assert take(table, message(("r", 8, (5,), "a"))) is None
        return True

    followed(table, stream, sink=stream.events_sink(put=put))
    assert take(table, message(stream.row((5,), "a"), ("r", 9, (6,), "b"))) == [1]
    assert stream.ids == [1, 5]


def test_the_tally_is_what_python_counts(table: StreamTable) -> None:

    one, other = (Histogram("h", "h", buckets=ITL_BUCKETS, registry=CollectorRegistry()) for _ in range(2))
    counted, summed = RecentLatencies(), RecentLatencies()
    stream, rng, now_s = RowStream("r"), random.Random(3), 1.0
    followed(table, stream)
    for _ in range(300):
        gap_s = rng.choice((0.0, 1e-7, 0.004, *ITL_BUCKETS, rng.expovariate(20)))
        before_s, now_s = now_s, now_s + gap_s
        take(table, message(stream.row((5, 6), "a")), now_s)
        one.observe(now_s - before_s)
        counted.record_delivery(2, now_s - before_s, now_s)
        tally = table.take_tally()
        assert tally is not None
        observe_many(other, tally.buckets, tally.gaps_s)
        summed.record_deliveries(tally.tokens, tally.bins, now_s)
        assert tally.models == {"a-model": 2}
    assert counted._slots == summed._slots
    assert _samples(one) == pytest.approx(_samples(other))
    assert table.take_tally() is None


def _samples(histogram: Any) -> dict[Any, float]:
    return {
        (each.name, *each.labels.values()): each.value
        for family in histogram.collect()
        for each in family.samples
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x99",
        codec.encode(Cancel("cancelled"), ENVELOPE),
        message(("r", 8, (5,), "a"))[:-1],
        message(("r", 8, (5,), "a")) + b"\xc0",
        message(("r", 8, (5,), "a"), epochs=(1, 1)),
        message(("r", 8, (5,), "a"), epochs=()),
        message(("r", 8, (5,), "a"), epochs=(-1,)),
        message(("r", 8, (5,), "a"), positions=(True,)),
        message(("r", 8, (MOST_ID + 1,), "a")),
        message(("r", 8, (-1,), "a")),
        message(("r", 8, (5,), "a"), texts=(b"a",)),
        message(("r", 8, (5,), "a")).replace(b"\xa1a", b"\xa1\xff"),
        message(("r", 8, (5,), "abc")).replace(b"abc", b"\xed\xa0\x80"),
        b"\xdd\xff\xff\xff\xff" + message(("r", 8, (5,), "a"))[1:],
    ],
)
def test_what_is_no_plain_message_of_text_is_for_the_codec(table: StreamTable, data: bytes) -> None:
    stream = RowStream("r")
    followed(table, stream)
    assert take(table, data) is None
    assert stream.ids == [1]


def test_what_is_taken_is_what_the_codec_takes(table: StreamTable) -> None:
    """Messages with a few bytes changed are read as the codec reads them."""
    rng, taken = random.Random(5), 0
    whole = message(("r", 8, (5, 300, 70_000), "äöü"), ("o", 8, (MOST_ID,), "b"), marks=((), (Mark("a", 1),)))
    for _ in range(20_000):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed)
        try:
            _, decoded = codec.decode(data)
        except ProtocolError:
            try:
                assert take(table, data) is None
            except Unchecked:
                continue
        else:
            assert isinstance(decoded, Text)
            left = take(table, data, checked=True)
            assert left in (None, list(range(len(decoded.request_ids))))
            taken += left is not None
    assert taken > 100
