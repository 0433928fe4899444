"""Reading a JSON object that a client sent: a field that is wrong is named, one that is null is absent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shared.errors import InvalidRequest
from shared.sampling.parameters import Bounds

SHOWN_CHARS = 40
"""The characters of a wrong value that the sentence about it shows."""


class WrongField(InvalidRequest):
    """`param` is the field's path in the body, as OpenAI's error objects name it."""

    def __init__(self, param: str, problem: str) -> None:
        super().__init__(f"{param} {problem}")
        self.param = param


class JsonFields:
    """`path` stands in front of the names, "" at the top of the body. What is asked for again is the same."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    @property
    def raw(self) -> Mapping[str, Any]:
        return self._values

    def param(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def value(self, name: str) -> Any:
        return self._values.get(name)

    def names(self) -> Sequence[str]:
        return [name for name in self._values if self.has(name)]

    def text(self, name: str, default: str = "") -> str:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def choice(self, name: str, allowed: Collection[str], default: str = "") -> str:
        """Return the text of a field, which is one of `allowed`; `default` where it is absent."""
        value = self.value(name)
        if value is None and default:
            return default
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong(name, f"one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def number(self, name: str, bounds: Bounds) -> Any:
        """Return the number in a field, or None when it is absent."""
        value = self.value(name)
        if value is not None and not bounds.hold(value):
            raise self.wrong(name, str(bounds))
        return value

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        value = self.number(name, Bounds(low, high, integer=True))
        return default if value is None else int(value)

    def object(self, name: str) -> JsonFields:
        """An empty one when it is absent."""
        value = self.value(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return JsonFields(value, self.param(name))

    def array(self, name: str) -> list[Any]:
        """An empty one when it is absent."""
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "an array")
        return value

    def objects(self, name: str) -> list[JsonFields]:
        """Return the objects of an array."""
        found = []
        for index, value in enumerate(self.array(name)):
            if not isinstance(value, dict):
                raise self.wrong(f"{name}[{index}]", "an object", value)
            found.append(JsonFields(value, self.param(f"{name}[{index}]")))
        return found

    def strings(self, name: str) -> list[str]:
        """Return the strings of a field that holds one or an array of them."""
        value = self.value(name)
        if isinstance(value, str):
            return [value]
        values = self.array(name)
        for index, each in enumerate(values):
            if not isinstance(each, str):
                raise self.wrong(f"{name}[{index}]", "a string", each)
        return values

    def integers(self, name: str, bounds: Bounds) -> list[int]:
        values = self.array(name)
        for index, each in enumerate(values):
            if not bounds.hold(each):
                raise self.wrong(f"{name}[{index}]", str(bounds), each)
        return values

    def wrong(self, name: str, allowed: str, value: Any = None) -> WrongField:
        shown = repr(self.value(name) if value is None else value)
        shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}…"
        return WrongField(self.param(name), f"is {shown}: send {allowed}")
