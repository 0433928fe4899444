"""Bytes from the bus: what is no message is a ProtocolError, what is one is the same after another way."""

from __future__ import annotations

import random

import msgpack

from shared.bus import codec
from shared.bus.codec import MESSAGE_TYPES
from shared.errors import PenstockError, ProtocolError
from shared.messages import MEANING_VERSION, Envelope
from tests.fuzz.messages import random_message, random_name
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.target import Fault, Target, in_memory
from tests.support.hostile_json import VALUES

NO_VERSION = 0
"""Stands in a kept input for the version of the day, so that it stays a message when one changes."""


def make(rng: random.Random) -> bytes:
    message = random_message(MESSAGE_TYPES[random_name(rng)], rng)
    packed = codec.encode(message, Envelope("r-1", 1, 0, "gateway-0", ""))
    whole = msgpack.unpackb(packed, use_list=True)
    whole[1] = NO_VERSION
    if rng.random() < 0.5:
        _change(whole, rng)
    data: bytes = msgpack.packb(whole, unicode_errors="surrogatepass")
    return mutated_bytes(data, rng) if rng.random() < 0.3 else data


def _change(whole: list[object], rng: random.Random) -> None:
    """Put something hostile in the place of a field, at any depth."""
    place: list[object] = whole
    index = rng.randrange(2, len(whole))
    while isinstance(inner := place[index], list) and inner and rng.random() < 0.8:
        place, index = inner, rng.randrange(len(inner))
    value = rng.choice([each for each in VALUES if not isinstance(each, int) or -(2**63) <= each < 2**64])
    place[index] = [] if isinstance(value, list) else value


def with_version(data: bytes) -> bytes:
    """Return a kept message as one of this version, and what is none as it is."""
    try:
        whole = msgpack.unpackb(data, use_list=True, unicode_errors="surrogatepass")
    except Exception:  # noqa: BLE001 - most of what is tried is no msgpack, in one way or another
        return data
    if isinstance(whole, list) and len(whole) > 1 and whole[1] == NO_VERSION:
        whole[1] = MEANING_VERSION
    return bytes(msgpack.packb(whole, unicode_errors="surrogatepass"))


def run(data: bytes) -> None:
    try:
        envelope, message = codec.decode(with_version(data))
    except ProtocolError:
        raise
    except PenstockError as error:
        raise Fault(f"bytes from the bus are refused as {type(error).__name__}") from error
    again = codec.decode(codec.encode(message, envelope))
    if repr(again) != repr((envelope, message)):  # numbers that are none differ from themselves
        raise Fault(f"a {type(message).__name__} is another one after the next way")


TARGET = Target("bus_codec", make, in_memory(run), tries=1000)
