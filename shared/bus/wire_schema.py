"""Describe the wire: the fields of all messages and of the records in them, to be recorded and compared.

A record of it is `{"meaning": 6, "records": {"Cancel": [["reason", "str"]], …}}`: a field is its name and
type, and its default where it has one.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from shared.bus.codec import MESSAGE_TYPES
from shared.messages import MEANING_VERSION, Envelope

WireSchema = Mapping[str, Any]


def wire_schema() -> WireSchema:
    """Return what this version of the code puts on the wire."""
    roots: list[type[Any]] = [Envelope, *MESSAGE_TYPES.values()]
    records = {cls.__name__: cls for root in roots for cls in _records(root)}
    return {
        "meaning": MEANING_VERSION,
        "messages": sorted(MESSAGE_TYPES),
        "records": {name: _fields(records[name]) for name in sorted(records)},
    }


def schema_digest() -> int:
    """Return a u32 that is the same in two processes whose messages have the same fields."""
    return zlib.crc32(json.dumps(wire_schema(), sort_keys=True).encode())


def schema_breaks(before: WireSchema, now: WireSchema) -> list[str]:
    """Return a sentence for each change between two schemas of one meaning that breaks the rule of
    `shared.messages.compatibility`."""
    removed = sorted(set(before["messages"]) - set(now["messages"]))
    breaks = [f"the message {name} is gone, which an older sender still sends" for name in removed]
    for name, old in before["records"].items():
        if name in now["records"]:
            breaks += _field_breaks(name, old, now["records"][name])
    return breaks


def _field_breaks(name: str, old: list[list[str]], new: list[list[str]]) -> Iterator[str]:
    for place, field in enumerate(old):
        if place >= len(new):
            yield f"{name} has lost its field {field[0]}"
        elif new[place] != field:
            yield f"field {place + 1} of {name} was {_told(field)} and is {_told(new[place])}"
    for field in new[len(old) :]:
        if len(field) < 3:
            yield f"{name} has a new field {field[0]} without a default"


def _told(field: list[str]) -> str:
    name, kind, *default = field
    return f"`{name}: {kind}{''.join(f' = {each}' for each in default)}`"


def _fields(cls: type[Any]) -> list[list[str]]:
    hints = typing.get_type_hints(cls)
    return [
        [field.name, _type_text(hints[field.name])]
        + ([_value_text(field.default)] if field.default is not dataclasses.MISSING else [])
        for field in dataclasses.fields(cls)
    ]


def _type_text(hint: Any) -> str:
    """Return a type as it is written, with aliases resolved."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Ellipsis:
        return "..."
    if origin is tuple:
        return f"tuple[{', '.join(map(_type_text, args))}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join("None" if arg is type(None) else _type_text(arg) for arg in args)
    return str(hint.__name__)


def _value_text(value: Any) -> str:
    """Return a default; of a record that which is not its own default, so that it may gain fields."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    said = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    own = {field.name: field.default for field in dataclasses.fields(value)}
    changed = ", ".join(f"{name}={_value_text(each)}" for name, each in said.items() if each != own[name])
    return f"{type(value).__name__}({changed})"


def _records(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield a record and all records in it."""
    yield cls
    for hint in typing.get_type_hints(cls).values():
        for record in _records_in(hint):
            yield from _records(record)


def _records_in(hint: Any) -> list[type[Any]]:
    if dataclasses.is_dataclass(hint):
        return [typing.cast("type[Any]", hint)]
    return [record for argument in typing.get_args(hint) for record in _records_in(argument)]
