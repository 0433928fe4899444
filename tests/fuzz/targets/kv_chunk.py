"""KV as it comes to a receiver: chunks of bytes over the bus, cells announced in shared memory, and the
control messages of both. Headers, lengths, blocks and epochs lie; chunks are cut, doubled, late, of others.

A line of an input is one thing that happens: a word, and what it takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared.kv.chunk import ChunkHeader
from shared.kv.memory.shared_pool import SharedPool
from shared.messages import KvAbort, KvAbortAck, KvDone, KvReady
from tests.fuzz.messages import random_message
from tests.fuzz.mutation import EDGES, mutated_bytes
from tests.fuzz.played_transfers import (
    CELL,
    EPOCH,
    EXPECTED,
    LAYERS,
    REQUEST_BLOCKS,
    SOURCE,
    SOURCE_MEMORY,
    PlayedTransfers,
    blocks_of,
    body_of,
    chunk_of,
    first_of,
    kept_message,
    packed,
)
from tests.fuzz.target import RunOne, Target
from tests.fuzz.targets.bus_codec import NO_VERSION

LIARS = (1, 2)
"""The transfers that are not honest: their own senders may say anything of them."""
STEPS = (1, 3, 8, 20)
LIARS_NAMES = ("prefill-0", "prefill-1", "nobody")
CONTROL = (KvReady, KvDone, KvAbort, KvAbortAck)
ATTEMPTS = ("", EPOCH - 1, EPOCH, EPOCH + 1, 2**32)
TIMES_S = (0.0, 0.06, 0.2, 0.6, 6.0, 11.0, 31.0)
HEADER_FIELDS = ("transfer", "epoch", "offset", "layer", "block", "blocks", "body_bytes")
MAX_LIES_ABOUT_HONEST = 8
"""A path that changes more chunks of one transfer than so many is broken, and the transfer with it."""
SMALLEST = (0, 1, 47, 48, 49)


def make(rng: random.Random) -> bytes:
    lines, lies = [f"pieces {rng.choice((1, 7, 64, 1000, 1 << 20))}"], 0
    for _ in range(rng.choice(STEPS)):
        what = rng.choice((_chunk, _chunk, _chunk, _honest_lie, _control, _control, _ours))
        if what is _honest_lie:
            lies += 1
            if lies > MAX_LIES_ABOUT_HONEST:
                continue
        lines.append(what(rng))
    return "\n".join(lines).encode()


def _run(rng: random.Random) -> tuple[int, int, int]:
    """A layer, a first block and an end that are part of a transfer."""
    layer = rng.randrange(LAYERS)
    first = rng.randrange(first_of(layer), REQUEST_BLOCKS)
    return layer, first, rng.randint(first + 1, REQUEST_BLOCKS)


def _chunk(rng: random.Random) -> str:
    """A chunk of a liar: right, wrong in a field of its header with a checksum that fits, or broken."""
    number, (layer, first, end) = rng.choice(LIARS), _run(rng)
    offset = rng.choice((0, CELL, 5 * CELL, 16 * CELL, *EDGES))
    body = body_of(number, layer, first, end) if rng.random() < 0.7 else rng.randbytes((end - first) * CELL)
    header = ChunkHeader(number, EPOCH, offset % (1 << 64), layer, first, end - first, len(body))
    if rng.random() < 0.6:
        header, body = _lying(rng, header, body)
    payload = header.pack(memoryview(body)) + body
    return _line(rng, _broken(rng, payload))


def _lying(rng: random.Random, header: ChunkHeader, body: bytes) -> tuple[ChunkHeader, bytes]:
    name = rng.choice(HEADER_FIELDS)
    most = (1 << 64) - 1 if name in ("transfer", "offset") else (1 << 32) - 1
    value = rng.choice((*EDGES, getattr(header, name) + 1, max(0, getattr(header, name) - 1))) & most
    if name == "transfer" and value in (3, 4):
        value = 5  # that of an honest one would be a sound chunk
    if rng.random() < 0.3:
        body = body[: rng.randrange(len(body) + 1)]
    return dataclasses.replace(header, **{name: value}), body


def _broken(rng: random.Random, payload: bytes) -> bytes:
    match rng.randrange(8):
        case 0:
            return payload[: rng.choice((*SMALLEST, len(payload) - 1))]
        case 1:
            return payload + rng.randbytes(rng.choice((1, CELL)))
        case 2:
            return mutated_bytes(payload, rng)
        case _:
            return payload


def _honest_lie(rng: random.Random) -> str:
    """A chunk that names an honest transfer and is none of it: another length, other cells, no credit,
    another checksum, another epoch; or the honest one, once more."""
    number, (layer, first, end) = rng.choice((3, 4)), _run(rng)
    payload = bytearray(chunk_of(number, layer, first, end, 0))
    match rng.randrange(6):
        case 0:
            return _line(rng, bytes(payload))
        case 1:
            payload[rng.randrange(40, 48)] ^= 1 + rng.randrange(255)
        case 2:
            place = rng.choice((4, 16, 24, 28, 32, 36))  # epoch, offset, layer, block, blocks, bytes
            was = bytes(payload[place : place + 4])
            struct.pack_into("<I", payload, place, rng.choice((*EDGES, 4, 5, 6)) & 0xFFFFFFFF)
            if bytes(payload[place : place + 4]) == was:
                payload[place] ^= 1
        case 3:
            del payload[-rng.randint(1, CELL) :]
        case 4:
            payload += rng.randbytes(rng.randint(1, CELL))
        case _:
            payload[rng.randrange(48, len(payload))] ^= 1 + rng.randrange(255)
    return _line(rng, bytes(payload))


def _line(rng: random.Random, payload: bytes) -> str:
    if rng.random() < 0.1:
        return f"cut {rng.randrange(len(payload) + 40)} {payload.hex()}"
    return f"chunk {payload.hex()}"


def _control(rng: random.Random) -> str:
    """A message of a liar; the name of its sender is its own, which a bus sees to."""
    number = rng.choice(LIARS)
    expected = EXPECTED[number - 1]
    message: Any
    if rng.random() < 0.5:
        message = random_message(rng.choice(CONTROL), rng)
        message = dataclasses.replace(message, transfer=rng.choice((number, number, 3, 4, 5, 2**64 - 1)))
    elif rng.random() < 0.6:
        message = _ready(rng, number)
    else:
        message = rng.choice(
            (
                KvDone(
                    number,
                    rng.choice(((5,), (), (-1, 2**63))),
                    rng.choice(("", "", "stop", "x")),
                    rng.choice((0, 0, -1, 10**6, 2**63)),
                ),
                KvAbort(number, "a" * 300),
                KvAbortAck(number),
            )
        )
    request_id = rng.choice((expected.request_id, expected.request_id, "r-2", "r-3", ""))
    epoch = rng.choice((EPOCH, EPOCH, EPOCH, EPOCH - 1, EPOCH + 1, 0))
    sender = expected.prefill if rng.random() < 0.8 else rng.choice(LIARS_NAMES)
    return f"say {sender} {kept_message(packed(request_id, epoch, message), NO_VERSION).hex()}"


def _ready(rng: random.Random, number: int) -> KvReady:
    layer, first, end = _run(rng)
    last = rng.choice((layer + 1, layer + 1, layer + 2, LAYERS, LAYERS + 1, layer, -1, 2**40))
    blocks = blocks_of(EXPECTED[number - 1], layer, first, end)
    if rng.random() < 0.3:
        blocks = (*blocks[:-1], rng.choice((0, 47, 48, -1, 2**31, 2**63)))
    if rng.random() < 0.05:
        blocks = blocks * 3000
    sums = tuple(
        SOURCE_MEMORY.checksum(layer, blocks_of(EXPECTED[number - 1], layer, first, end))
        for _ in range(min(16, max(0, last - layer)))
    )
    if rng.random() < 0.2:
        sums = tuple(each ^ 1 for each in sums) or (2**64 - 1, 0)
    return KvReady(number, layer, last, first, blocks, sums)


def _ours(rng: random.Random) -> str:
    """What the decode worker itself does meanwhile, and time."""
    request = rng.choice(LIARS) - 1
    match rng.randrange(5):
        case 0:
            return f"abort {request}"
        case 1:
            return f"expect {request} {rng.choice((EPOCH, EPOCH + 1, EPOCH + 2, 2**32 - 1, 2**32))}"
        case 2:
            return f"lost prefill-{request}"
        case _:
            return f"wait {rng.choice(TIMES_S)}"


async def play(data: bytes, shared: SharedPool) -> None:
    transfers, pieces = PlayedTransfers(shared), 1 << 20
    await transfers.begin()
    try:
        for line in data.decode(errors="replace").split("\n"):
            word, *given = line.split(" ")
            try:
                happen = _happening(transfers, word, given, pieces)
            except (ValueError, IndexError):
                continue  # what is no line of an input, as those that are made small are
            if word == "pieces":
                pieces = max(1, int(given[0]))
            happen()
            await transfers.settle()
    finally:
        await transfers.end()


def _happening(transfers: PlayedTransfers, word: str, given: list[str], pieces: int) -> Callable[[], Any]:
    """Return what a line makes happen. Raises ValueError or IndexError for one that is none."""
    match word:
        case "chunk":
            payload = bytes.fromhex(given[0])
            return lambda: transfers.chunk(payload, pieces)
        case "cut":
            lost_at, payload = int(given[0]), bytes.fromhex(given[1])
            return lambda: transfers.chunk(payload, pieces, max(0, lost_at))
        case "say":
            sender, message = given[0], bytes.fromhex(given[1])
            return lambda: transfers.message(sender, message)
        case "expect":
            expected, epoch = EXPECTED[:2][int(given[0])], int(given[1])
            return lambda: transfers.expect(expected, epoch)
        case "abort":
            key = EXPECTED[:2][int(given[0])].key
            return lambda: transfers.receiver.abort_transfer(key, "cancelled")
        case "lost":
            peer = EXPECTED[:2][("prefill-0", "prefill-1").index(given[0])].prefill
            return lambda: transfers.receiver.peer_lost(peer)
        case "wait":
            seconds = min(60.0, max(0.0, float(given[0])))
            return lambda: transfers.pass_time(seconds)
        case _:
            return lambda: None


@contextmanager
def opened() -> Iterator[RunOne]:
    shared = SharedPool.create(len(SOURCE))
    shared.memory[:] = SOURCE
    try:
        with asyncio.Runner() as runner:
            yield lambda data: runner.run(play(data, shared))
    finally:
        shared.close()


TARGET = Target("kv_chunk", make, opened, tries=100)
