"""Messages ↔ bytes: msgpack arrays, versioned, every field checked against its annotation.

    [type, version, request_id, epoch, deadline_us, origin, trace, tenant, [field, field, …]]

Fields go by position, so a message is as small as its values. PROTOCOL_VERSION is a digest of all fields of
all messages: a change of any is a new version. What is not exactly a message of this version raises a
ProtocolError.
"""

from __future__ import annotations

import dataclasses
import types
import typing
import zlib
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import msgpack

from shared import messages
from shared.errors import ProtocolError, UnknownMessage
from shared.messages import MEANING_VERSION, Envelope, Message

Checker = Callable[[Any], Any]
M = TypeVar("M")

MAX_MESSAGE_BYTES = 16 << 20
"""Nothing longer is even parsed; the server's max_payload is usually 1 MB."""

MAX_U64 = (1 << 64) - 1

_SCALARS = (int, str, bytes, bool)
_TUPLES = {tuple}


def _bad(value: object, wanted: str) -> ProtocolError:
    return ProtocolError(f"a field should be {wanted}, got {type(value).__name__}")


def _scalar(wanted: type) -> Checker:
    def check(value: Any) -> Any:
        if type(value) is not wanted:
            raise _bad(value, wanted.__name__)
        return value

    return check


def _float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _bad(value, "float")
    return float(value)


def _elements(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise _bad(value, "a list")
    return value


def _tuple_of(element: Checker) -> Checker:
    return lambda value: tuple(map(element, _elements(value)))


def _tuple_of_scalars(wanted: type) -> Checker:
    """Read all of a column in one call: what msgpack made is taken as it is."""
    types = {wanted}

    def check(value: Any) -> Any:
        if not types.issuperset(map(type, _elements(value))):
            raise _bad(next(item for item in value if type(item) is not wanted), wanted.__name__)
        return value

    return check


def _rows_of_scalars(wanted: type) -> Checker:
    """The same for a column whose rows are columns themselves."""
    types = {wanted}

    def check(value: Any) -> Any:
        if not _TUPLES.issuperset(map(type, _elements(value))):
            raise _bad(next(row for row in value if type(row) is not tuple), "a list")
        if not types.issuperset(map(type, chain.from_iterable(value))):
            raise _bad(
                next(item for item in chain.from_iterable(value) if type(item) is not wanted), wanted.__name__
            )
        return value

    return check


def _rows_of(element: Checker) -> Checker:
    """The same for rows of records, of which a step has mostly none."""
    row = _tuple_of(element)

    def check(value: Any) -> Any:
        if _TUPLES.issuperset(map(type, _elements(value))) and not any(value):
            return value
        return tuple(map(row, value))

    return check


def _fixed_tuple(elements: tuple[Checker, ...]) -> Checker:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) != len(elements):
            raise _bad(value, f"a list of {len(elements)}")
        return tuple(element(item) for element, item in zip(elements, value, strict=True))

    return check


def _optional(inner: Checker) -> Checker:
    return lambda value: None if value is None else inner(value)


def _record(cls: type[M]) -> Callable[[Any], M]:
    checkers = tuple(_checker(hint) for hint in typing.get_type_hints(cls).values())
    name = cls.__name__

    def check(value: Any) -> M:
        if type(value) is not tuple or len(value) != len(checkers):
            raise ProtocolError(f"{name} needs {len(checkers)} fields")
        return cls(*[checker(item) for checker, item in zip(checkers, value, strict=True)])

    return check


def _checker(hint: Any) -> Checker:
    """The function that checks and converts a value unpacked by msgpack for this annotation."""
    if hint is float:
        return _float
    if hint in _SCALARS:
        return _scalar(hint)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast("type[Any]", hint))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return _column_checker(args[0])
        return _fixed_tuple(tuple(_checker(arg) for arg in args))
    if origin in (typing.Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        return _optional(_checker(args[0]))
    raise TypeError(f"the codec has no rule for a field of type {hint}")


def _column_checker(hint: Any) -> Checker:
    """Return the checker for any number of `hint`."""
    if hint in _SCALARS:
        return _tuple_of_scalars(hint)
    args = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and args[-1] is Ellipsis:
        return _rows_of_scalars(args[0]) if args[0] in _SCALARS else _rows_of(_checker(args[0]))
    return _tuple_of(_checker(hint))


MESSAGE_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in typing.get_args(Message)}
_DECODERS: dict[str, Callable[[Any], Any]] = {name: _record(cls) for name, cls in MESSAGE_TYPES.items()}
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    cls: tuple(field.name for field in dataclasses.fields(cls)) for cls in MESSAGE_TYPES.values()
}


def _described(cls: type[Any]) -> str:
    """Its fields as they are written, and those of the records in them."""
    fields = ", ".join(f"{field.name}: {field.type}" for field in dataclasses.fields(cls))
    nested = [
        _described(record) for hint in typing.get_type_hints(cls).values() for record in _records_in(hint)
    ]
    return f"{cls.__name__}({fields}){nested}"


def _records_in(hint: Any) -> list[type[Any]]:
    if dataclasses.is_dataclass(hint):
        return [typing.cast("type[Any]", hint)]
    return [record for argument in typing.get_args(hint) for record in _records_in(argument)]


_DESCRIPTION = "\n".join(map(_described, MESSAGE_TYPES.values()))
PROTOCOL_VERSION = zlib.crc32(f"{MEANING_VERSION} {_DESCRIPTION}".encode())
"""u32: the same in two processes exactly when they mean the same by the same messages."""
_COLUMNAR = (messages.Tokens, messages.Text, messages.DraftCommit, messages.DraftBlock)


def _as_list(record: Any) -> list[Any]:
    """msgpack's fallback for what it cannot pack itself: a nested dataclass becomes its fields."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return [getattr(record, field.name) for field in dataclasses.fields(record)]
    raise TypeError(f"{type(record).__name__} cannot cross the bus")


def encode(message: Message, envelope: Envelope) -> bytes:
    cls = type(message)
    fields = [getattr(message, name) for name in _FIELDS[cls]]
    head = [
        cls.__name__,
        PROTOCOL_VERSION,
        envelope.request_id,
        envelope.epoch,
        envelope.deadline_us,
        envelope.origin,
        envelope.trace,
        envelope.tenant,
        fields,
    ]
    packed: bytes = msgpack.packb(head, default=_as_list, use_bin_type=True)
    return packed


def decode(data: bytes, reply: str = "") -> tuple[Envelope, Message]:
    """Raises UnknownMessage for a type or version of another time, ProtocolError for anything else."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    try:
        head = msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=False)
    except (ValueError, msgpack.exceptions.UnpackException, TypeError) as error:
        raise ProtocolError(f"not a msgpack message: {type(error).__name__}") from error
    if type(head) is not tuple or len(head) < 2 or type(head[0]) is not str:
        raise ProtocolError("not a message: it does not begin with its type and version")
    decoder = _DECODERS.get(head[0])
    if decoder is None:
        raise UnknownMessage(f"unknown message type {head[0][:40]!r}; is a newer service on this bus?")
    if head[1] != PROTOCOL_VERSION:
        raise UnknownMessage(f"{head[0]} has version {head[1]!r}, this service speaks {PROTOCOL_VERSION}")
    if len(head) != 9:
        raise ProtocolError(f"{head[0]} has {len(head)} envelope fields instead of 9")
    envelope = _envelope(head, reply)
    message = decoder(head[8])
    if isinstance(message, _COLUMNAR):
        _check_columns(message)
    return envelope, message


def _envelope(head: tuple[Any, ...], reply: str) -> Envelope:
    request_id, epoch, deadline_us, origin, trace, tenant = head[2:8]
    if not (type(request_id) is str is type(origin) and type(trace) is str is type(tenant)):
        raise ProtocolError("request_id, origin, trace and tenant of the envelope should be strings")
    if not (type(epoch) is int and type(deadline_us) is int and epoch >= 0 and 0 <= deadline_us <= MAX_U64):
        raise ProtocolError("epoch and deadline of the envelope should be non-negative integers")
    return Envelope(request_id, epoch, deadline_us, origin, trace, reply, tenant)


def _check_columns(
    message: messages.Tokens | messages.Text | messages.DraftCommit | messages.DraftBlock,
) -> None:
    rows = len(message.request_ids)
    for name in _FIELDS[type(message)]:
        column = getattr(message, name)
        if isinstance(column, tuple) and len(column) != rows:
            raise ProtocolError(f"{type(message).__name__}.{name} has {len(column)} rows instead of {rows}")
