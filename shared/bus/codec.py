"""Messages ↔ bytes: msgpack arrays, versioned, every field checked against its annotation.

    [type, version, request_id, epoch, deadline_us, origin, trace, tenant, [field, field, …]]

Fields go by position, so a message is as small as its values; those at the end that have their defaults are
left out. The version is MEANING_VERSION: `shared.messages.compatibility` says what two versions of the code
understand of each other. What is no message raises a ProtocolError.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from itertools import chain, takewhile
from typing import Any, TypeVar

import msgpack
import structlog

from shared import messages
from shared.errors import ProtocolError, UnknownMessage
from shared.messages import ASKS_THAT_DECIDE, MEANING_VERSION, Envelope, Message

log = structlog.get_logger()

Checker = Callable[[Any], Any]
M = TypeVar("M")

MAX_MESSAGE_BYTES = 16 << 20
"""Nothing longer is even parsed; the server's max_payload is usually 1 MB."""

MAX_U64 = (1 << 64) - 1
ENVELOPE_FIELDS = 9
"""The fields of a message's list that are known here; what stands behind them is a newer version's."""

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


def _record(cls: type[M], *, whole: bool = False) -> Callable[[Any], M]:
    """Return what reads a record. `whole`: one with more fields than are known here is refused."""
    whole = whole or cls in ASKS_THAT_DECIDE
    checkers = tuple(_checker(hint, whole=whole) for hint in typing.get_type_hints(cls).values())
    name = cls.__name__

    def check(value: Any) -> M:
        if type(value) is not tuple:
            raise ProtocolError(f"{name} needs a list of {len(checkers)} fields, got {type(value).__name__}")
        if len(value) != len(checkers):
            _check_length(cls, len(value), whole=whole)
        return cls(*[checker(item) for checker, item in zip(checkers, value, strict=False)])

    return check


def field_names(cls: type[Any]) -> tuple[str, ...]:
    """Return the names of a record's fields, in their order."""
    names: tuple[str, ...] = cls.__match_args__
    return names


def _check_length(cls: type[Any], sent: int, *, whole: bool) -> None:
    """Raise ProtocolError where a record of `sent` fields is not one of an earlier or a later version."""
    names = field_names(cls)
    if sent > len(names):
        if whole:
            raise UnknownMessage(
                f"{cls.__name__} has {sent} fields and this service knows {len(names)} of them: a newer one "
                "asks for what this one cannot do"
            )
        _tell_of_newer(cls.__name__, sent, len(names))
    elif len(_defaults_at_end(cls)) < len(names) - sent:
        raise ProtocolError(f"{cls.__name__} lacks its field {names[sent]!r}, which has no default")


def _tell_of_newer(name: str, sent: int, known: int) -> None:
    if name not in _told_of_newer:
        _told_of_newer.add(name)
        log.info("newer_message", message=name, fields=sent, known=known, help="the others are left out")


_told_of_newer: set[str] = set()
"""The records that came with more fields than are known, so that each is told of once."""


def _defaults_at_end(cls: type[Any]) -> tuple[Any, ...]:
    """Return the defaults of the last fields, from the last one on, to the first that has none."""
    found = _DEFAULTS.get(cls)
    if found is None:
        fields = reversed(dataclasses.fields(cls))
        with_default = takewhile(lambda field: field.default is not dataclasses.MISSING, fields)
        found = _DEFAULTS[cls] = tuple(field.default for field in with_default)
    return found


_DEFAULTS: dict[type[Any], tuple[Any, ...]] = {}
"""The answers of `_defaults_at_end`, by record."""


def _checker(hint: Any, *, whole: bool) -> Checker:
    """The function that checks and converts a value unpacked by msgpack for this annotation."""
    if hint is float:
        return _float
    if hint in _SCALARS:
        return _scalar(hint)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast("type[Any]", hint), whole=whole)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return _column_checker(args[0], whole=whole)
        return _fixed_tuple(tuple(_checker(arg, whole=whole) for arg in args))
    if origin in (typing.Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        return _optional(_checker(args[0], whole=whole))
    raise TypeError(f"the codec has no rule for a field of type {hint}")


def _column_checker(hint: Any, *, whole: bool) -> Checker:
    """Return the checker for any number of `hint`."""
    if hint in _SCALARS:
        return _tuple_of_scalars(hint)
    args = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and args[-1] is Ellipsis:
        return _rows_of_scalars(args[0]) if args[0] in _SCALARS else _rows_of(_checker(args[0], whole=whole))
    return _tuple_of(_checker(hint, whole=whole))


MESSAGE_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in typing.get_args(Message)}
_DECODERS: dict[str, Callable[[Any], Any]] = {name: _record(cls) for name, cls in MESSAGE_TYPES.items()}


def _columns(cls: type[Any]) -> tuple[tuple[str, bool], ...]:
    """Return the names of the columns, and whether an older sender may lack it."""
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if typing.get_origin(hints[field.name]) is tuple]
    return tuple((field.name, field.default == ()) for field in fields)


_COLUMNAR = (messages.Tokens, messages.Text, messages.DraftCommit, messages.DraftBlock)
_COLUMNS: dict[type[Any], tuple[tuple[str, bool], ...]] = {cls: _columns(cls) for cls in _COLUMNAR}


def _as_list(record: Any) -> list[Any]:
    """msgpack's fallback for what it cannot pack itself: a nested dataclass becomes its fields."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        cls = type(record)
        return _said([getattr(record, name) for name in field_names(cls)], cls)
    raise TypeError(f"{type(record).__name__} cannot cross the bus")


def _said(fields: list[Any], cls: type[Any]) -> list[Any]:
    """Leave out the fields at the end that have their defaults: an older receiver may not know them."""
    for default in _defaults_at_end(cls):
        value = fields[-1]
        if type(value) is not type(default) or value != default or _is_negative_zero(value):
            break
        fields.pop()
    return fields


def _is_negative_zero(value: object) -> bool:
    """Return whether it equals a default of 0.0 and is another number."""
    return type(value) is float and value == 0 and math.copysign(1, value) < 0


def encode(message: Message, envelope: Envelope) -> bytes:
    cls = type(message)
    fields = _said([getattr(message, name) for name in field_names(cls)], cls)
    head = [
        cls.__name__,
        MEANING_VERSION,
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
    if head[1] != MEANING_VERSION:
        raise UnknownMessage(
            f"{head[0]} has version {str(head[1])[:20]} and this service speaks version {MEANING_VERSION}: "
            "the two cannot work in one fleet"
        )
    if len(head) < ENVELOPE_FIELDS:
        raise ProtocolError(f"{head[0]} has {len(head)} envelope fields instead of {ENVELOPE_FIELDS}")
    envelope = _envelope(head, reply)
    message = decoder(head[8])
    if (columns := _COLUMNS.get(type(message))) is not None:
        _check_columns(message, columns)
    return envelope, message


def _envelope(head: tuple[Any, ...], reply: str) -> Envelope:
    request_id, epoch, deadline_us, origin, trace, tenant = head[2:8]
    if not (type(request_id) is str is type(origin) and type(trace) is str is type(tenant)):
        raise ProtocolError("request_id, origin, trace and tenant of the envelope should be strings")
    if not (type(epoch) is int and type(deadline_us) is int and epoch >= 0 and 0 <= deadline_us <= MAX_U64):
        raise ProtocolError("epoch and deadline of the envelope should be non-negative integers")
    return Envelope(request_id, epoch, deadline_us, origin, trace, reply, tenant)


def _check_columns(message: Any, columns: tuple[tuple[str, bool], ...]) -> None:
    rows = len(message.request_ids)
    for name, may_lack in columns:
        column = getattr(message, name)
        if len(column) != rows and (column or not may_lack):
            raise ProtocolError(f"{type(message).__name__}.{name} has {len(column)} rows instead of {rows}")
