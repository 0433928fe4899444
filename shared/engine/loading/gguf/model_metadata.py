"""Read the metadata of a GGUF file about a model, by key and checked. Errors name the key."""

from __future__ import annotations

from array import array

from shared.engine.loading.families.raw_config import MAX_INTEGER, MAX_NUMBER, shown
from shared.engine.loading.gguf.header import GgufHeader, HeaderArray


class ModelMetadata:
    """Keys are those after the architecture's name: `block_count` is llama.block_count in a llama file.

    Every method raises InvalidRequest with the key when the value is not what it must be.
    """

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise header.refused(
                "its metadata has no general.architecture; give the file of a language model"
            )
        self.architecture = architecture

    def integer(self, name: str, default: int | None = None, *, at_least: int = 1) -> int:
        """Required without a default. One per layer is taken where all are the same."""
        value = self._one_of_all_layers(name)
        value = default if value is None else value
        if type(value) is not int or not at_least <= value <= MAX_INTEGER:
            raise self.header.refused(
                f"{self._key(name)} must be an integer from {at_least} to {MAX_INTEGER}, not {shown(value)}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Required without a default; 0 or more."""
        value = self.header.metadata.get(self._key(name), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
            raise self.header.refused(f"{self._key(name)} must be a number from 0 on, not {shown(value)}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.header.metadata.get(self._key(name), default)
        if not isinstance(value, bool):
            raise self.header.refused(f"{self._key(name)} must be true or false, not {shown(value)}")
        return value

    def text(self, name: str) -> str:
        """Empty where there is none."""
        value = self.header.metadata.get(self._key(name), "")
        if not isinstance(value, str):
            raise self.header.refused(f"{self._key(name)} must be a text, not {shown(value)}")
        return value

    def has(self, name: str) -> bool:
        return self._key(name) in self.header.metadata

    def flags(self, name: str) -> list[bool] | None:
        """One per layer; None where it is no list."""
        if not isinstance(self.header.metadata.get(self._key(name)), HeaderArray):
            return None
        return [bool(each) for each in self._numbers(name)]

    def _one_of_all_layers(self, name: str) -> object:
        value = self.header.metadata.get(self._key(name))
        if not isinstance(value, HeaderArray):
            return value
        different = set(self._numbers(name))
        if len(different) != 1:
            raise self.header.refused(
                f"{self._key(name)} differs from layer to layer, which no model that is read does"
            )
        return different.pop()

    def _numbers(self, name: str) -> array[int] | array[float]:
        numbers = self.header.numbers(self._key(name))
        assert numbers is not None
        return numbers

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"
