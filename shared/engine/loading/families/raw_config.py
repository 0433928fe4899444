"""The fields of a config.json, read by name and checked. Errors name the field."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from shared.errors import InvalidRequest

MAX_INTEGER = 2**31 - 1
"""Beyond it no backend's integers go, and nothing that is counted in a model."""
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e30
"""Within these, products of two are finite and float32 can hold each."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


def shown(value: object) -> str:
    """Show a value in a sentence: of what is long or deep, the beginning."""
    return _SHORT.repr(value)


class RawConfig:
    """`fields` as they stand in the file; a field that is absent is looked up in `defaults`, null is null.

    Every method raises InvalidRequest with the field's name when the value is not what it must be. That is
    also where numbers end that would be too large for memory, or for an integer, somewhere later.
    """

    def __init__(self, fields: Mapping[str, Any], dtype: str, eos_token_ids: tuple[int, ...] = ()) -> None:
        self.fields = fields
        self.dtype = dtype  # the one that the engine computes in
        self.eos_token_ids = eos_token_ids  # of config.json and generation_config.json

    def with_defaults(self, **defaults: Any) -> RawConfig:
        return RawConfig({**defaults, **self.fields}, self.dtype, self.eos_token_ids)

    def without(self, *names: str) -> RawConfig:
        kept = {name: value for name, value in self.fields.items() if name not in names}
        return RawConfig(kept, self.dtype, self.eos_token_ids)

    def integer(
        self, name: str, default: int | None = None, *, at_least: int = 1, at_most: int = MAX_INTEGER
    ) -> int:
        """Required without a default."""
        value = self.fields.get(name)
        value = default if value is None else value
        if type(value) is not int or not at_least <= value <= at_most:
            raise InvalidRequest(
                f"config.json: {name} must be an integer of at least {at_least} and at most {at_most}, "
                f"not {shown(value)}"
            )
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return an integer of at least 1; None where the field is absent or null."""
        return None if self.fields.get(name) is None else self.integer(name)

    def number(self, name: str, default: float) -> float:
        """A positive number within MIN_NUMBER and MAX_NUMBER."""
        value = self.optional_number(name)
        return default if value is None else value

    def optional_number(self, name: str) -> float | None:
        value = self.fields.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not MIN_NUMBER <= value <= MAX_NUMBER:
            raise InvalidRequest(
                f"config.json: {name} must be a positive number from {MIN_NUMBER} to {MAX_NUMBER}, "
                f"not {shown(value)}"
            )
        return float(value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """`length` positive numbers."""
        value = self.fields.get(name)
        if not isinstance(value, list) or len(value) != length:
            raise InvalidRequest(f"config.json: {name} must be a list of {length} numbers")
        return tuple(RawConfig({name: each}, self.dtype).number(name, 0.0) for each in value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Integers, zero and negative ones too; None where the field is absent or null."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise InvalidRequest(f"config.json: {name} must be a list of integers, not {shown(value)}")
        return tuple(value)

    def token_id(self, name: str) -> int | None:
        """A token id, the first where there are several; None where there is none."""
        return next(iter(token_ids(self.fields, name)), None)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidRequest(f"config.json: {name} must be true or false, not {shown(value)}")
        return value

    def part(self, name: str) -> Mapping[str, Any]:
        """The object in field `name`; an empty one where it is absent or null."""
        value = self.fields.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise InvalidRequest(f"config.json: {name} must be an object, not {shown(value)}")
        return value

    def refuse(self, name: str, why: str) -> None:
        """Raise InvalidRequest when the flag `name` is set."""
        if self.flag(name):
            raise InvalidRequest(f"config.json: {name} is not supported; {why}")


def token_ids(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The ids in a field that holds one, a list of them, or nothing."""
    value = fields.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token_id) is int for token_id in ids):
        raise InvalidRequest(f"config: {name} must be an integer or a list of integers, not {shown(value)}")
    return tuple(ids)
