"""The parts that schemas are made of. A field of a body that is null is absent, so it may be null unless it
is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shared.sampling.parameters import MAX_FINITE, Bounds

Schema = dict[str, Any]


def text(help_text: str = "", *, most: int | None = None, least: int | None = None) -> Schema:
    return _with({"type": "string"}, description=help_text, maxLength=most, minLength=least)


def some_text(help_text: str = "", *, most: int | None = None) -> Schema:
    """Return the schema of a text that is not blank."""
    return text(help_text, most=most, least=1) | {"pattern": r"\S"}


def choice(allowed: Iterable[str], help_text: str = "") -> Schema:
    return _with({"type": "string", "enum": list(allowed)}, description=help_text)


def flag(help_text: str = "") -> Schema:
    return _with({"type": "boolean"}, description=help_text)


def integer(low: int | None = None, high: int | None = None, help_text: str = "") -> Schema:
    return _with({"type": "integer"}, minimum=low, maximum=high, description=help_text)


def number_within(bounds: Bounds, help_text: str = "") -> Schema:
    """Return the schema of a number that has these bounds."""
    made: Schema = {"type": "integer" if bounds.integer else "number"}
    low = int(bounds.low) if bounds.integer else bounds.low
    made["exclusiveMinimum" if bounds.above_low else "minimum"] = low
    if bounds.high != MAX_FINITE:
        made["maximum"] = int(bounds.high) if bounds.integer else bounds.high
    if bounds.also is not None:
        made = {"anyOf": [{"const": bounds.also}, made]}
    return _with(made, description=help_text)


def array(items: Schema, *, least: int | None = None, most: int | None = None, help_text: str = "") -> Schema:
    return _with({"type": "array", "items": items}, minItems=least, maxItems=most, description=help_text)


def any_of(*schemas: Schema, help_text: str = "") -> Schema:
    return _with({"anyOf": list(schemas)}, description=help_text)


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be null too."""
    if isinstance(schema.get("type"), str) and "enum" not in schema and "const" not in schema:
        return schema | {"type": [schema["type"], "null"]}
    return _with({"anyOf": [_without(schema), {"type": "null"}]}, description=schema.get("description", ""))


def body_of(properties: Mapping[str, Schema], *needed: str, closed: bool = False) -> Schema:
    """Return the schema of an object that a client sends: what it does not need may be null; `closed`: with
    no other fields."""
    shown = {name: made if name in needed else or_null(made) for name, made in properties.items()}
    made: Schema = {"type": "object", "properties": shown}
    if needed:
        made["required"] = list(needed)
    if closed:
        made["additionalProperties"] = False
    return made


def answer_of(properties: Mapping[str, Schema], *absent: str) -> Schema:
    """Return the schema of an object that we write: all of it is there but what may be `absent`."""
    needed = [name for name in properties if name not in absent]
    return {"type": "object", "properties": dict(properties), "required": needed}


def _with(made: Schema, **more: Any) -> Schema:
    return made | {name: value for name, value in more.items() if value not in (None, "")}


def _without(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name != "description"}
