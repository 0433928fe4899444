"""Hostile versions of good inputs: bytes, text by its words, JSON by its fields."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Sequence
from typing import Any

from tests.support.hostile_json import hostile_bodies

EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
"""The numbers at which lengths, counts and signs go wrong."""
MAX_INSERTED_BYTES = 64
MAX_INPUT_BYTES = 1 << 18
WORD = re.compile(r"\w+|\s+|[^\w\s]")
HOSTILE_WORDS = (
    "",
    "\0",
    "\ufeff",
    "\u2028",
    "\U0001f600",
    "\\ud800",
    "nan",
    "inf",
    "-1",
    "1e999",
    "9" * 400,
    "0x" + "f" * 40,
    "1979-05-27T07:32:00Z",
    "[" * 2000,
    "{" * 2000,
    "(" * 2000,
    "a" * 5000,
    "'" * 3,
    '"' * 3,
    "\\",
    "..",
    "/dev/null",
)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one to four places changed."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        _change_bytes(made, rng)
    return bytes(made[:MAX_INPUT_BYTES])


def _change_bytes(made: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(made) + 1)
    size = rng.choice((1, 2, 4, 8, rng.randint(1, MAX_INSERTED_BYTES)))
    match rng.randrange(7):
        case 0 if made:
            made[place % len(made)] ^= 1 << rng.randrange(8)
        case 1:
            layout = rng.choice(("<B", "<H", "<I", "<Q"))
            number = rng.choice(EDGES) & ((1 << 8 * struct.calcsize(layout)) - 1)
            made[place : place + struct.calcsize(layout)] = struct.pack(layout, number)
        case 2:
            del made[place : place + size]
        case 3:
            made[place:place] = rng.randbytes(size)
        case 4:
            made[place:place] = made[place : place + size] * rng.choice((1, 2, 50))
        case 5:
            del made[place:]
        case _:
            made[place : place + size] = rng.randbytes(size)


def mutated_text(text: str, rng: random.Random, words: Sequence[str] = ()) -> str:
    """Return `text` with one to four of its words put elsewhere, repeated, left out, or made hostile.

    `words` are those of its language, of which one may stand anywhere.
    """
    parts = WORD.findall(text)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(parts) + 1)
        word = rng.choice((*words, *HOSTILE_WORDS))
        match rng.randrange(6):
            case 0:
                parts[place : place + 1] = [word]
            case 1:
                parts.insert(place, word)
            case 2:
                del parts[place : place + rng.randint(1, 8)]
            case 3:
                parts[place:place] = parts[place : place + rng.randint(1, 16)] * rng.choice((1, 3))
            case 4 if parts:
                parts.insert(place, rng.choice(parts))
            case _:
                del parts[place:]
    return "".join(parts)[:MAX_INPUT_BYTES]


def mutated_json(value: dict[str, Any], rng: random.Random) -> bytes:
    """Return `value` as JSON with up to three of its values hostile, in one of eight with broken bytes."""
    ((_, body),) = hostile_bodies(value, rng, 1)
    return mutated_bytes(body, rng) if rng.random() < 0.125 else body
