"""Count the parts of a message before it is read, which costs time and memory for each of them.

Reading holds up the whole gateway. The bytes of a text cost next to nothing, but four megabytes of empty
parts took 0.3 s and 200 MB: so many are refused, as those of a JSON body are, after a look at the first ones.
"""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from shared.errors import InvalidRequest

MAX_MESSAGE_PARTS = 20_000
"""The fields of a message, and of all messages in it; each entry of a list is one, but for packed numbers."""
MAX_PACKED_NUMBERS = 1_000_000
"""The numbers in packed lists of a message, such as ids of tokens."""
FEWEST_BYTES = 2
"""A part has at least a tag and a value."""
_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}
"""Kinds of values on the wire; the bytes of those that are always as long."""
_GOES_ON = bytes(range(128, 256))
"""The bytes after which a number goes on."""


def check_parts(raw: bytes, kind: Descriptor | None) -> None:
    """Raise InvalidRequest where `raw`, a message of this kind, has more parts than anybody needs. None: of
    another contract, whose messages have no messages in them.

    What is no message is for its reader to refuse: it comes no further than this.
    """
    if len(raw) <= FEWEST_BYTES * MAX_MESSAGE_PARTS:
        return
    try:
        _count(raw, kind)
    except IndexError:
        return


def _count(raw: bytes, kind: Descriptor | None) -> None:
    """Raises IndexError where the bytes end within a part."""
    parts, numbers = 0, 0
    waiting = [(0, len(raw), _fields(kind))]
    while waiting:
        at, end, fields = waiting.pop()
        while at < end:
            parts += 1
            if parts > MAX_MESSAGE_PARTS:
                raise _too_many(f"{MAX_MESSAGE_PARTS} parts")
            tag, at = _number(raw, at)
            if tag & 7 != _BYTES:
                at = _behind(raw, at, tag & 7)
                continue
            length, at = _number(raw, at)
            inner = fields.get(tag >> 3)
            if inner is not None:
                waiting.append((at, min(at + length, end), _fields(inner)))
            elif tag >> 3 in fields:
                numbers += _numbers(raw[at : at + length])
            at += length
        if numbers > MAX_PACKED_NUMBERS:
            raise _too_many(f"{MAX_PACKED_NUMBERS} numbers")


def _too_many(what: str) -> InvalidRequest:
    return InvalidRequest(f"the message has more than {what}: send less in one call")


def _behind(raw: bytes, at: int, wire: int) -> int:
    """Return where the value of a part ends that is no bytes. The ends of groups have none."""
    if wire == _VARINT:
        return _number(raw, at)[1]
    return at + _WIDTHS.get(wire, 0)


@cache
def _fields(kind: Descriptor | None) -> dict[int, Descriptor | None]:
    """Return the numbers of the fields that hold messages, and of what kind; None: lists of numbers."""
    fields = () if kind is None else kind.fields
    inner: dict[int, Descriptor | None] = {}
    for field in fields:
        if field.message_type is not None:
            inner[field.number] = field.message_type
        elif field.is_repeated and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            inner[field.number] = None
    return inner


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    byte = raw[at]
    if byte < 128:
        return byte, at + 1
    value, shift = 0, 0
    while byte >= 128:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise IndexError
        byte = raw[at]
    return value | byte << shift, at + 1


def _numbers(packed: bytes) -> int:
    return len(packed.translate(None, _GOES_ON))
