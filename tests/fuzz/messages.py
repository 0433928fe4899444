"""Random bus messages by their annotations: what the codec takes, with numbers and lengths at edges."""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from typing import Any

from shared.bus.codec import MESSAGE_TYPES
from shared.messages import pack_hashes, pack_ids
from tests.fuzz.mutation import EDGES

NAMES = (
    "gateway-0",
    "tokenizer-0",
    "retriever-0",
    "prefill-0",
    "decode-0",
    "speculator-0",
    "detokenizer-0",
    "penstock-demo",
    "nobody-7",
    "",
    "a.b",
    "*",
    ">",
    "\0",
    "a b\r\nPUB x 0",
    "x" * 300,
)
"""Instances, models and what is none: many fields name one."""
WORDS = (
    "hello",
    "cancelled",
    "exact",
    "low",
    "user",
    "system",
    "json_schema",
    "regex",
    "a" * 20_000,
    "\U0001f600",
)
NUMBERS = (*EDGES, -1, -(2**31), -(2**63), 3, 16, 48, 1000)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    1e-30,
    1e30,
    1e308,
    -1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
ROWS = (0, 1, 1, 1, 2, 3, 17)


def random_message(cls: type[Any], rng: random.Random) -> Any:
    """Return a message of this type, whose columns have one length."""
    rows = rng.choice(ROWS)
    return cls(**{name: _value(hint, rng, rows) for name, hint in typing.get_type_hints(cls).items()})


def random_name(rng: random.Random) -> str:
    """Return the name of a type of message."""
    return rng.choice(sorted(MESSAGE_TYPES))


def _value(hint: Any, rng: random.Random, rows: int) -> Any:
    if hint is bool:
        return rng.random() < 0.5
    if hint is int:
        return rng.choice(NUMBERS) if rng.random() < 0.6 else rng.randrange(64)
    if hint is float:
        return rng.choice(FLOATS) if rng.random() < 0.5 else rng.random()
    if hint is str:
        return rng.choice((*NAMES, *WORDS))
    if hint is bytes:
        return _bytes(rng)
    if dataclasses.is_dataclass(hint):
        return random_message(typing.cast("type[Any]", hint), rng)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if rng.random() < 0.4 else _value(args[0], rng, rows)
    if args[-1] is not Ellipsis:
        return tuple(_value(arg, rng, rows) for arg in args)
    return tuple(_value(args[0], rng, rng.choice(ROWS)) for _ in range(rows))


def _bytes(rng: random.Random) -> bytes:
    """Ids, block hashes, vectors, and what is a part of one."""
    count = rng.choice((0, 1, 15, 16, 17, 40, 2000))
    match rng.randrange(5):
        case 0:
            return pack_ids(rng.randrange(4096) for _ in range(count))
        case 1:
            return pack_ids(rng.choice((0, 1, 4095, 4096, 2**31, 2**32 - 1)) for _ in range(count))
        case 2:
            return pack_hashes(rng.randbytes(16) for _ in range(count))
        case 3:
            return rng.randbytes(rng.choice((1, 3, 7, 15, 33)))
        case _:
            return b""
