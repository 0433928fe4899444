"""What people attack servers of HTTP/2 by ends the call or the connection, at the limit that has its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared.http2.limits import ServerLimits
from shared.http2.native_codec import new_connection
from tests.support.http2_wire import (
    ACK,
    CALM,
    CANCEL,
    CLOSED,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL,
    PUSH_PROMISE,
    REFUSED,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    SIZE,
    WINDOW_UPDATE,
    CodecEnd,
    block,
    data,
    frame,
    headers,
    message,
    number,
    reset,
    settings,
    window_update,
)

PINGED = frame(PING, payload=b"12345678")
BAD: dict[str, tuple[bytes, int]] = {
    "a frame that is too long": (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", SIZE),
    "DATA of no stream": (frame(DATA), PROTOCOL),
    "DATA of a stream that has not begun": (data(1, b""), PROTOCOL),
    "HEADERS of no stream": (frame(HEADERS, END_HEADERS), PROTOCOL),
    "HEADERS of a server's stream": (frame(HEADERS, END_HEADERS, 2), PROTOCOL),
    "more padding than payload": (frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09abc"), PROTOCOL),
    "no padding at all": (frame(HEADERS, END_HEADERS | PADDED, 1), PROTOCOL),
    "a short priority": (frame(HEADERS, END_HEADERS | 32, 1, b"abc"), SIZE),
    "PRIORITY of no stream": (frame(PRIORITY, payload=bytes(5)), PROTOCOL),
    "a PRIORITY of another size": (frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    "RST_STREAM of no stream": (reset(0), PROTOCOL),
    "RST_STREAM of a stream that has not begun": (reset(1), PROTOCOL),
    "a RST_STREAM of another size": (frame(RST_STREAM, 0, 1, bytes(5)), SIZE),
    "SETTINGS of a stream": (frame(SETTINGS, 0, 1), PROTOCOL),
    "half a setting": (frame(SETTINGS, payload=bytes(5)), SIZE),
    "a long acknowledgement": (frame(SETTINGS, ACK, payload=bytes(6)), SIZE),
    "a push that is neither": (settings((2, 2)), PROTOCOL),
    "a first window beyond all": (settings((4, 1 << 31)), FLOW),
    "frames too short": (settings((5, 16383)), PROTOCOL),
    "frames too long": (settings((5, 1 << 24)), PROTOCOL),
    "a promise": (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), PROTOCOL),
    "PING of a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "a PING of another size": (frame(PING, payload=bytes(7)), SIZE),
    "GOAWAY of a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "a short GOAWAY": (frame(GOAWAY, payload=bytes(7)), SIZE),
    "WINDOW_UPDATE by nothing": (window_update(0, 0), PROTOCOL),
    "a window beyond all": (window_update(0, (1 << 31) - 65535), FLOW),
    "a window of a stream that has not begun": (window_update(1, 1), PROTOCOL),
    "a WINDOW_UPDATE of another size": (frame(WINDOW_UPDATE, payload=bytes(3)), SIZE),
    "CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1), PROTOCOL),
    "headers that another frame interrupts": (frame(HEADERS, 0, 1) + PINGED, PROTOCOL),
    "headers that go on in another stream": (frame(HEADERS, 0, 1) + frame(CONTINUATION, 4, 3), PROTOCOL),
}


@pytest.mark.parametrize("name", BAD)
def test_a_frame_that_breaks_a_rule_ends_the_connection(name: str) -> None:
    sent, code = BAD[name]
    assert CodecEnd().failed(sent) == code


@pytest.mark.parametrize("name", BAD)
def test_it_ends_the_same_when_it_comes_byte_by_byte(name: str) -> None:
    sent, code = BAD[name]
    end, events = CodecEnd(), []
    for at in range(len(sent)):
        events += end.hear(sent[at : at + 1])
    assert events[-1][::2] == (9, code)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", PREFACE[:-1] + b"x", b"\x16\x03\x01"])
def test_what_is_not_http2_is_told_so(said: bytes) -> None:
    (event,) = new_connection(ServerLimits().codec()).receive(said, 0)
    assert event[::2] == (9, PROTOCOL)


def test_the_first_frame_is_settings() -> None:
    codec = new_connection(ServerLimits().codec())
    assert codec.receive(PREFACE, 0) == []
    assert not codec.is_open
    assert codec.receive(PINGED, 0)[-1][::2] == (9, PROTOCOL)


# ---- floods ---------------------------------------------------------------------------------------


def flood(end: CodecEnd, limit: int, send: Callable[[int], bytes]) -> None:
    """`limit` of them are taken and one more is not."""
    for count in range(limit):
        assert end.failed(send(count)) == -1, count
    assert end.failed(send(limit)) == CALM


IDLE: dict[str, Callable[[int], bytes]] = {
    "settings": lambda _: settings(),
    "acknowledgements": lambda _: frame(SETTINGS, ACK),
    "answers to pings": lambda _: frame(PING, ACK, payload=bytes(8)),
    "priorities": lambda count: frame(PRIORITY, 0, 1 + 2 * count, bytes(5)),
    "windows": lambda _: window_update(0, 1),
    "frames of no kind": lambda _: frame(99),
    "goodbyes": lambda _: frame(GOAWAY, payload=bytes(8)),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_flood_of_frames_that_bring_nothing(name: str) -> None:
    flood(CodecEnd(max_idle_frames=11), 10, IDLE[name])


@pytest.mark.parametrize("piece", [b"", b"x"])
def test_a_flood_of_small_pieces(piece: bytes) -> None:
    end = CodecEnd(max_idle_frames=11)
    end.hear(headers())
    flood(end, 10, lambda _: data(1, piece))


def test_a_flood_of_resets_of_calls_that_are_gone() -> None:
    end = CodecEnd(max_idle_frames=11)
    end.hear(headers(), reset(1))
    flood(end, 10, lambda _: reset(1))


def test_what_may_come_comes_back_with_time_and_with_what_is_answered() -> None:
    end = CodecEnd(max_idle_frames=11, idle_frames_per_s=10)
    for _ in range(10):
        end.hear(settings())
    end.now_ms += 100
    assert end.failed(settings()) == -1
    end.hear(headers())
    end.codec.respond(1, ((":status", "200"),))
    assert end.failed(settings(), settings(), settings()) == -1
    assert end.failed(settings()) == CALM


def test_a_flood_of_pings_has_the_name_that_clients_know() -> None:
    end = CodecEnd(max_early_pings=2, min_ping_ms=1000)
    assert end.failed(PINGED, PINGED, PINGED) == -1
    events = end.hear(PINGED)
    assert events[-1][2:] == (CALM, "too_many_pings")


def test_pings_that_are_far_enough_apart_or_beside_answers_are_answered() -> None:
    end = CodecEnd(max_early_pings=0, min_ping_ms=1000)
    for _ in range(10):
        assert end.failed(PINGED) == -1
        end.now_ms += 1000
    end.hear(headers())
    for _ in range(10):
        end.codec.respond(1, ((":status", "200"),))
        assert end.failed(PINGED) == -1


def test_a_rapid_reset() -> None:
    end = CodecEnd(max_resets=10)
    flood(end, 10, lambda count: headers(1 + 2 * count) + reset(1 + 2 * count))


def test_calls_that_a_broken_rule_ends_count_as_resets_do() -> None:
    """A client that has us reset its calls may begin others at once too."""
    end = CodecEnd(max_resets=10)
    flood(end, 10, lambda count: headers(1 + 2 * count) + window_update(1 + 2 * count, 0))


def test_calls_that_are_malformed_count_as_resets_do() -> None:
    end = CodecEnd(max_resets=10)
    flood(end, 10, lambda count: headers(1 + 2 * count, ("Bad", "x")))


def test_a_continuation_flood_loses_the_headers_and_then_the_connection() -> None:
    first, more = frame(HEADERS, 0, 1, block(REQUEST)), frame(CONTINUATION, 0, 1)
    end = CodecEnd(max_continuations=3)
    assert end.hear(first, more, more, frame(CONTINUATION, END_HEADERS, 1))[0][:3] == (1, 1, 0)
    end = CodecEnd(max_continuations=3, max_idle_frames=11)
    assert end.failed(first, more, more, more) == -1
    assert end.hear(more) == [(1, 1, 1, []), (10, 0, 0, b"")]
    flood(end, 10, lambda _: more)


def test_headers_that_are_too_long_on_the_wire_end_with_their_call_and_others_go_on() -> None:
    part = block((*REQUEST, ("a", "x" * 900)))
    begun = block(REQUEST)
    sent = frame(HEADERS, 0, 3, part[:500]) + frame(CONTINUATION, END_HEADERS, 3, part[500:])
    end = CodecEnd(max_header_block_bytes=len(part))
    assert end.hear(frame(HEADERS, END_HEADERS, 1, begun), sent)[1][:3] == (1, 3, 0)
    end = CodecEnd(max_header_block_bytes=len(part) - 1)
    events = end.hear(frame(HEADERS, END_HEADERS, 1, begun), sent)
    assert events[1:] == [(1, 3, 1, []), (10, 0, 0, b"")]
    end.codec.finish(3, (("grpc-status", "8"),))
    goodbye, *_ = end.said()
    assert (goodbye.kind, goodbye.payload[3], goodbye.payload[7]) == (GOAWAY, 3, CALM)
    assert end.hear(headers(5)) == []
    assert end.codec.want(1) is None
    assert [event[0] for event in end.hear(data(1, message(b"goes on"), end=True))] == [2]


def test_headers_beyond_their_limit_are_left_out_and_the_call_is_told_so() -> None:
    size = sum(len(name) + len(value) + 32 for name, value in REQUEST)
    for most, code in ((size, 0), (size - 1, 1)):
        ((kind, _, found, told),) = CodecEnd(max_header_list_bytes=most).hear(headers())
        assert (kind, found, bool(told)) == (1, code, code == 0)


def test_an_hpack_bomb_is_not_read_on() -> None:
    """A byte each that stands for four kilobytes."""
    end = CodecEnd(max_header_list_bytes=16384)
    bomb = block((("a", "x" * 4000),), 0x40) + number(62, 7, 0x80) * 15_000
    events = end.hear(frame(HEADERS, END_HEADERS, 1, block(REQUEST) + bomb[: 16384 - 200]))
    assert events == [(1, 1, 1, []), (10, 0, 0, b"")]


def test_the_table_stays_right_behind_headers_that_were_too_many() -> None:
    end = CodecEnd(max_header_list_bytes=600)
    end.hear(headers(1, ("fill", "x" * 600)))
    many = block((*REQUEST, ("kept", "y" * 600)), 0x40)
    assert end.hear(frame(HEADERS, END_HEADERS, 3, many))[0][2] == 1
    short = block((*REQUEST[:3],)) + number(62 + 2, 7, 0x80)
    ((_, _, code, told),) = end.hear(frame(HEADERS, END_HEADERS, 5, short))
    assert (code, told[-1]) == (0, ("te", "trailers"))


def test_settings_in_plenty() -> None:
    assert CodecEnd(max_settings=3).failed(settings(*[(4, 65535)] * 3)) == -1
    assert CodecEnd(max_settings=3).failed(settings(*[(4, 65535)] * 4)) == CALM


def test_more_calls_than_there_may_be_are_refused_and_may_be_asked_again() -> None:
    end = CodecEnd(max_calls=2)
    assert len(end.hear(headers(1), headers(3), headers(5))) == 2
    ((kind, _, stream, code),) = end.said()
    assert (kind, stream, int.from_bytes(code, "big")) == (RST_STREAM, 5, REFUSED)
    end.codec.reset(1, CANCEL)
    assert len(end.hear(headers(7))) == 1


# ---- windows --------------------------------------------------------------------------------------


def ended(end: CodecEnd, *sent: bytes) -> int:
    """The code that call 1 is reset with; -1: it is not."""
    events = end.hear(*sent)
    resets = [int.from_bytes(each.payload, "big") for each in end.said() if each.kind == RST_STREAM]
    assert [event[2] for event in events if event[0] == 6] == resets
    return resets[0] if resets else -1


def test_more_than_a_calls_window_ends_it() -> None:
    sent = [data(1, bytes(16384)) for _ in range(4)]
    end = CodecEnd(unread_bytes=65536)
    assert ended(end, headers(), *sent) == -1
    assert ended(end, data(1, b"x")) == FLOW


def test_more_than_the_connections_window_ends_that() -> None:
    end = CodecEnd(unread_bytes=1 << 20, connection_window_bytes=65535)
    end.hear(headers())
    for _ in range(100):  # it is given back as it comes, however little of it is read
        assert end.failed(data(1, bytes(16000))) == -1


@pytest.mark.parametrize(
    ("more", "code"), [(0, PROTOCOL), ((1 << 31) - 65535, FLOW), ((1 << 31) - 65536, -1)]
)
def test_a_window_of_a_call_that_cannot_be_ends_it(more: int, code: int) -> None:
    assert ended(CodecEnd(), headers(), window_update(1, more)) == code


def test_a_first_window_that_makes_one_too_large_ends_the_connection() -> None:
    end = CodecEnd()
    end.hear(headers(), window_update(1, (1 << 31) - 65536))
    assert end.failed(settings((4, 65536))) == FLOW


def test_a_window_below_zero_is_waited_for() -> None:
    end = CodecEnd()
    end.hear(headers())
    assert end.codec.write(1, bytes(1000)) == 1
    end.said()
    end.hear(settings((4, 0)))
    end.codec.write(1, b"abc")
    assert [each.kind for each in end.said()] == [SETTINGS]
    end.hear(window_update(1, 1005))
    assert end.said() == []  # the window is at zero
    end.hear(window_update(1, 8))
    assert [each.payload for each in end.said()] == [message(b"abc")]


def test_frames_behind_the_end_of_a_call_end_it() -> None:
    assert ended(CodecEnd(), headers(1, end=True), data(1, b"x")) == CLOSED
    assert ended(CodecEnd(), headers(1, end=True), headers(1, end=True)) == CLOSED


def test_headers_in_the_middle_of_a_call_end_it() -> None:
    assert ended(CodecEnd(), headers(), headers()) == PROTOCOL


def test_trailers_end_what_a_client_sends_and_have_no_path() -> None:
    end = CodecEnd()
    end.hear(headers())
    assert end.codec.want(1) is None
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, block((("x", "y"),)))
    assert [event[0] for event in end.hear(trailers)] == [3]
    bad = frame(HEADERS, END_HEADERS | END_STREAM, 1, block(((":path", "y"),)))
    assert ended(CodecEnd(), headers(), bad) == PROTOCOL


def test_a_body_is_as_long_as_its_headers_say() -> None:
    right, wrong = ("content-length", "3"), ("content-length", "4")
    assert ended(CodecEnd(), headers(1, right), data(1, b"abc", end=True)) == -1
    assert ended(CodecEnd(), headers(1, wrong), data(1, b"abc", end=True)) == PROTOCOL
    end = CodecEnd()
    assert end.hear(headers(1, right, end=True)) == []
