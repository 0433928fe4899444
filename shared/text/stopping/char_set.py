"""The set of characters that one place of a regular expression stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

KINDS: Mapping[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
    "D": lambda char: not char.isdecimal(),
    "W": lambda char: not (char.isalnum() or char == "_"),
    "S": lambda char: not char.isspace(),
}
"""The kinds of characters by the letters of their escapes, as Python's `re` has them."""


@dataclass(frozen=True, slots=True)
class CharSet:
    """Characters from `ranges` of code points, both ends included, and of `kinds`; `negated`: all others.

    With `ignores_case` a character is one of them where its small or its capital letter is.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    kinds: tuple[str, ...] = ()
    negated: bool = False
    ignores_case: bool = False

    def has(self, char: str) -> bool:
        """Return whether `char`, one character, is in the set."""
        found = self._names(char)
        if not found and self.ignores_case:
            found = any(self._names(each) for each in (char.lower(), char.upper()) if len(each) == 1)
        return found != self.negated

    def _names(self, char: str) -> bool:
        code = ord(char)
        return any(low <= code <= high for low, high in self.ranges) or any(
            KINDS[kind](char) for kind in self.kinds
        )
