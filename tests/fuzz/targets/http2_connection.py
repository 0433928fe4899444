"""Bytes at the codec of HTTP/2: conversations of clients of gRPC, with frames and bytes changed.

What is said does not depend on how it is cut, every answer is whole frames in their order, and nothing grows.
"""

from __future__ import annotations

import random
from typing import Any

from shared.http2.limits import MAX_UNSENT_BYTES, ServerLimits
from shared.http2.native_codec import has_codec, new_connection
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.target import Fault, Target, in_memory
from tests.support import http2_wire as wire

LIMITS = ServerLimits(max_calls=8, max_message_bytes=1 << 16)
MAX_FRAMES = 40
STATUS = (("grpc-status", "0"),)
ANSWER = ((":status", "200"), ("content-type", "application/grpc"))
PIECES = (1, 2, 3, 8, 9, 10, 50, 1000)
FRAME_ENDS = (0, 1, 5, 16383, 16384)


def make(rng: random.Random) -> bytes:
    stream, parts = 1, [wire.PREFACE, wire.settings((4, rng.choice((0, 1, 100, 65535, 1 << 20))))]
    for _ in range(rng.randint(1, MAX_FRAMES)):
        stream += rng.choice((0, 0, 2))
        parts.append(_frame(rng, rng.choice((stream, stream, stream, max(1, stream - 2), 0))))
    data = b"".join(parts)
    if rng.random() < 0.5:
        data = mutated_bytes(data, rng)
    return data


def _frame(rng: random.Random, stream: int) -> bytes:
    """A frame as it should be, or as it nearly should."""
    made = (
        lambda: wire.headers(stream, ("x", "y" * rng.choice((0, 10, 5000))), end=rng.random() < 0.3),
        lambda: wire.data(stream, wire.message(bytes(rng.choice(FRAME_ENDS[:3]))), end=rng.random() < 0.3),
        lambda: wire.data(stream, rng.randbytes(rng.choice(FRAME_ENDS)), end=rng.random() < 0.3),
        lambda: wire.frame(wire.DATA, wire.PADDED, stream, rng.randbytes(rng.randint(0, 300))),
        lambda: wire.frame(wire.HEADERS, rng.choice((0, 4, 5, 12, 36)), stream, wire.block(wire.REQUEST)),
        lambda: wire.frame(wire.HEADERS, 4, stream, wire.block(wire.REQUEST, 0x40) + rng.randbytes(8)),
        lambda: wire.frame(wire.CONTINUATION, rng.choice((0, 4)), stream, wire.block((("a", "b"),))),
        lambda: wire.window_update(stream, rng.choice((0, 1, 1000, 65535, 2**31 - 1))),
        lambda: wire.window_update(0, rng.choice((0, 1, 1000, 65535, 2**31 - 1))),
        lambda: wire.reset(stream),
        lambda: wire.settings((rng.randint(0, 7), rng.choice((0, 1, 4096, 16384, 65535, 2**31)))),
        lambda: wire.frame(wire.PING, rng.choice((0, 1)), payload=rng.randbytes(8)),
        lambda: wire.frame(rng.randrange(256), rng.randrange(256), stream, rng.randbytes(rng.randint(0, 20))),
    )
    return rng.choice(made)()


def run(data: bytes) -> None:
    rng = random.Random(data)
    whole = new_connection(LIMITS.codec())
    events = whole.receive(data, 1)
    cut, cut_events, size = new_connection(LIMITS.codec()), [], rng.choice(PIECES)
    size = max(size, len(data) // 2000)
    for at in range(0, len(data), size):
        cut_events += cut.receive(data[at : at + size], 1)
    if events != cut_events or whole.take() != cut.take():
        raise Fault(f"in pieces of {size} bytes it says something else")
    _serve(data, rng, size)


def _serve(data: bytes, rng: random.Random, size: int) -> None:
    """Answer what comes, now and then, in all ways."""
    codec, calls, out = new_connection(LIMITS.codec()), list[int](), b""
    for at in range(0, len(data), size):
        for event in codec.receive(data[at : at + size], at):
            if event[0] == 1:
                calls.append(event[1])
        if calls and rng.random() < 0.5:
            _act(codec, rng.choice(calls), rng)
        if codec.unsent_bytes > 8 * MAX_UNSENT_BYTES:
            raise Fault(f"{codec.unsent_bytes} bytes wait for the socket")
        if rng.random() < 0.5:
            out += codec.take()
    for stream in calls:
        codec.finish(stream, STATUS)
    _check(out + codec.take())
    if codec.stream_count > LIMITS.max_calls:
        raise Fault(f"{codec.stream_count} calls are open")


def _act(codec: Any, stream: int, rng: random.Random) -> None:
    way = rng.randrange(6)
    if way == 0:
        codec.want(stream)
    elif way == 1:
        codec.respond(stream, ANSWER)
    elif way == 2:
        codec.write(stream, bytes(rng.choice((0, 10, 20_000))))
    elif way == 3:
        codec.finish(stream, STATUS)
    elif way == 4:
        codec.reset(stream, 8)
    else:
        codec.take_freed()


def _check(said: bytes) -> None:
    begun = 0
    for each in wire.read_frames(said):
        if len(each.payload) > 16384:
            raise Fault(f"a frame of {len(each.payload)} bytes")
        if (each.kind == wire.CONTINUATION) != bool(begun) or begun not in (0, each.stream):
            raise Fault("headers are interrupted")
        if each.kind in (wire.HEADERS, wire.CONTINUATION):
            begun = 0 if each.flags & wire.END_HEADERS else each.stream


TARGET = Target("http2_connection", make, in_memory(run if has_codec() else lambda _: None), tries=400)
