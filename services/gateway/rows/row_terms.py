"""The parts of a request say of its plain rows when a row is one, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Attribute = tuple[object, str]
"""An attribute of an object, by its name."""
Term = tuple[object, str, object]
"""An attribute and the value that it has while rows are plain: the same number or string, else the very same
object."""


class RowTerms(NamedTuple):
    """Rows are plain while each of `terms` holds. A row that is written counts its ids up at `tokens` and its
    characters at `chars`, and its time is set at `arrivals`."""

    terms: tuple[Term, ...] = ()
    tokens: tuple[Attribute, ...] = ()
    chars: tuple[Attribute, ...] = ()
    arrivals: tuple[Attribute, ...] = ()

    @classmethod
    def of_all(cls, parts: Sequence[RowTerms]) -> RowTerms:
        """Return all of them as one."""
        return cls(
            tuple(each for part in parts for each in part.terms),
            tuple(each for part in parts for each in part.tokens),
            tuple(each for part in parts for each in part.chars),
            tuple(each for part in parts for each in part.arrivals),
        )


class DrawnTokens(NamedTuple):
    """Hears of tokens as they are drawn: `draw` takes their number; `places` count them where one tenant
    is alone, and nothing else is done."""

    draw: Callable[[int], None]
    places: tuple[Attribute, ...]


class KeptRows(NamedTuple):
    """The list of rows, each a position, ids and text, for those that come late: as long as `tokens` counts
    no more than `most_tokens` of them."""

    rows: list[tuple[int, tuple[int, ...], str]]
    tokens: Attribute
    most_tokens: int
