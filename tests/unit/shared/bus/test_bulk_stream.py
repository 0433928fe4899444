"""The bulk parser against every way a byte stream can be cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bus.bulk_stream import MAX_CONTROL_LINE_BYTES, MAX_UNREAD_BYTES, BulkStream

SUBJECT = b"penstock.kv.decode-0.7"


class RecordingSink:
    """Lands bodies in pieces of random sizes; refuses some."""

    header_bytes = 8

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.landed: list[tuple[bytes, bytes]] = []
        self.opened: list[bytes] = []
        self.losses = 0
        self._open: tuple[bytes, list[memoryview]] | None = None

    def open(self, header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
        self.opened.append(header)
        if header[:1] == b"x" or len(header) < self.header_bytes:
            return None
        memory = memoryview(bytearray(body_bytes))
        cuts = sorted(self._random.randint(0, body_bytes) for _ in range(3))
        views = [memory[a:b] for a, b in zip([0, *cuts], [*cuts, body_bytes], strict=True)]
        self._open = (header, views)
        return views

    def done(self) -> None:
        assert self._open is not None
        header, views = self._open
        self._open = None
        self.landed.append((header, b"".join(views)))

    def lost(self) -> None:
        self._open = None
        self.losses += 1


def feed(stream: BulkStream, data: bytes, sizes: Sequence[int]) -> None:
    """Write `data` as a kernel would: into the protocol's buffers, in pieces of `sizes` in turn."""
    at, turn = 0, 0
    while at < len(data):
        buffer = stream.get_buffer(-1)
        count = min(len(buffer), sizes[turn % len(sizes)], len(data) - at)
        buffer[:count] = data[at : at + count]
        stream.buffer_updated(count)
        at += count
        turn += 1


def chunk(header: bytes, body: bytes) -> bytes:
    payload = header + body
    return b"MSG %b 3 %d\r\n%b\r\n" % (SUBJECT, len(payload), payload)


@settings(max_examples=150)
@given(data=st.data(), seed=st.integers(0, 1 << 30))
async def test_any_mix_of_messages_survives_any_split_of_the_stream(data: st.DataObject, seed: int) -> None:
    rng = random.Random(seed)
    sink = RecordingSink(seed)
    stream = BulkStream({SUBJECT: sink})
    wire, passed, landed = bytearray(), bytearray(), []
    for _ in range(rng.randint(1, 12)):
        body = rng.randbytes(rng.choice((0, 1, 7, 500, 20_000, 70_000)))
        match rng.randint(0, 5):
            case 0:
                wire += chunk(b"h" + rng.randbytes(7), body)
                landed.append((wire[-len(body) - 10 : -len(body) - 2], body))
            case 1:
                wire += chunk(b"x" + rng.randbytes(7), body)
            case 2:
                wire += chunk(b"", body[:5])
            case 3:
                line = b"MSG other.subject 4 %d\r\n%b\r\n" % (len(body), body)
                wire += line
                passed += line
            case 4:
                line = b"HMSG %b 3 reply.to 12 %d\r\nNATS/1.0\r\n\r\n%b\r\n" % (SUBJECT, 12 + len(body), body)
                wire += line
                passed += line
            case _:
                wire += b"PING\r\n+OK\r\n"
                passed += b"PING\r\n+OK\r\n"
    sizes = data.draw(st.lists(st.sampled_from((1, 2, 3, 10, 63, 4096, 1 << 16)), min_size=1, max_size=5))
    if max(sizes) < 63:
        sizes = [*sizes, 4096]
    feed(stream, bytes(wire), sizes)
    assert sink.landed == [(bytes(header), body) for header, body in landed]
    assert bytes(stream.unread) == bytes(passed)


async def test_a_stream_fed_byte_by_byte_lands_the_same_bodies() -> None:
    sink = RecordingSink(1)
    stream = BulkStream({SUBJECT: sink})
    wire = (
        b"PING\r\n" + chunk(b"hheaders", b"body\r\nMSG x 1 2\r\n") + chunk(b"xheaders", b"no") + b"PONG\r\n"
    )
    feed(stream, wire, [1])
    assert sink.landed == [(b"hheaders", b"body\r\nMSG x 1 2\r\n")]
    assert bytes(stream.unread) == b"PING\r\nPONG\r\n"


async def test_a_payload_shorter_than_its_header_is_shown_short_and_skipped() -> None:
    sink = RecordingSink(1)
    stream = BulkStream({SUBJECT: sink})
    feed(stream, chunk(b"", b"abc") + chunk(b"", b"") + chunk(b"h" * 8, b"ok"), [5])
    assert sink.opened == [b"abc", b"", b"h" * 8]
    assert sink.landed == [(b"h" * 8, b"ok")]


async def test_discarding_a_body_half_way_leaves_its_memory_alone_and_the_stream_intact() -> None:
    memory = bytearray(100_000)

    class Sink(RecordingSink):
        def open(self, header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
            return (
                [memoryview(memory)[:body_bytes]] if header[:1] == b"h" else super().open(header, body_bytes)
            )

        def done(self) -> None:
            raise AssertionError("a discarded body is never done")

    sink = Sink(1)
    stream = BulkStream({SUBJECT: sink})
    wire = chunk(b"h" * 8, b"\xaa" * 90_000) + chunk(b"x" * 8, b"next") + b"PING\r\n"
    feed(stream, wire[:40_000], [4096])
    stream.discard_body(sink)
    before = bytes(memory)
    feed(stream, wire[40_000:], [4096])
    assert 0 < before.count(0xAA) < 90_000
    assert bytes(memory) == before
    assert sink.opened == [b"x" * 8]
    assert bytes(stream.unread) == b"PING\r\n"


async def test_a_connection_lost_inside_a_body_tells_the_sink_once() -> None:
    sink = RecordingSink(1)
    stream = BulkStream({SUBJECT: sink})
    feed(stream, chunk(b"h" * 8, b"b" * 50_000)[:30_000], [4096])
    stream.connection_lost(None)
    stream.connection_lost(None)
    assert sink.losses == 1
    assert sink.landed == []


async def test_a_control_line_without_an_end_closes_the_connection() -> None:
    stream = BulkStream({})
    with pytest.raises(ConnectionAbortedError):
        feed(stream, b"A" * (MAX_CONTROL_LINE_BYTES + 1), [65536])


async def test_a_sink_that_makes_room_for_another_size_is_an_error() -> None:
    class Wrong(RecordingSink):
        def open(self, _header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
            return [memoryview(bytearray(body_bytes + 1))]

    with pytest.raises(ValueError, match="made room"):
        feed(BulkStream({SUBJECT: Wrong(1)}), chunk(b"h" * 8, b"body"), [4096])


async def test_a_writer_waiting_for_the_socket_fails_when_the_connection_is_lost() -> None:
    stream = BulkStream({})
    stream.pause_writing()
    waiting = asyncio.ensure_future(stream.drain())
    await asyncio.sleep(0)
    stream.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await waiting


class PausedSocket:
    """Counts how often reading stops and goes on."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


async def test_reading_pauses_above_what_may_wait_and_goes_on_at_that_limit() -> None:
    stream, socket = BulkStream({}), PausedSocket()
    stream.connection_made(cast(asyncio.BaseTransport, socket))
    body = b"x" * (MAX_UNREAD_BYTES + 2)
    feed(stream, b"MSG other 3 %d\r\n%b\r\n" % (len(body), body), [1 << 20])
    assert socket.calls == ["pause"]
    stream.take(len(stream.unread) - MAX_UNREAD_BYTES - 1)
    assert socket.calls == ["pause"]
    stream.take(1)
    assert socket.calls == ["pause", "resume"]
    stream.take()
    assert socket.calls == ["pause", "resume"]
