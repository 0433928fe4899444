"""Draw what others see: seeds, ids, names. A simulation draws the same again.

What guards something (passwords, keys, nonces) comes from `secrets` itself, which nothing may stand in for.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from shared.seams.replacement import replaced


class ChanceSource(Protocol):
    """All that Chance can be asked."""

    def bits(self, count: int, /) -> int: ...
    def hex_digits(self, num_bytes: int, /) -> str: ...
    def one_of(self, letters: str, /) -> str: ...


class Chance:
    """The system's own randomness."""

    __slots__ = ("bits", "hex_digits", "one_of")

    bits: Callable[[int], int]
    """(count): a number of so many bits."""
    hex_digits: Callable[[int], str]
    """(num_bytes): two digits for each byte."""
    one_of: Callable[[str], str]
    """(letters): one of them."""

    def __init__(self) -> None:
        self.bits = secrets.randbits
        self.hex_digits = secrets.token_hex
        self.one_of = secrets.choice

    def replaced_by(self, source: ChanceSource) -> AbstractContextManager[None]:
        """Draw from `source` in this block, whoever draws."""
        return replaced(self, self.__slots__, source)


CHANCE = Chance()
