"""Take turns between the first in a line and the shortest: each has as many tokens as the other had.

So a short prompt does not stand behind a long one, and a long one is never slower than by half.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ShortestTurns(Generic[T]):
    """`tokens` says how many one of a line has still to compute. A line is of one tenant and class, in the
    order of its deadlines, and never empty."""

    def __init__(self, tokens: Callable[[T], int]) -> None:
        self._tokens = tokens
        self._ahead = 0  # tokens that the shortest have had more than the first, since they differ

    def next(self, line: Sequence[T]) -> T:
        """Return whose turn it is."""
        return self._next(line[0], min(line, key=self._tokens))

    def in_order(self, line: Sequence[T]) -> list[T]:
        """Return the line in the order in which its turns come."""
        turns: ShortestTurns[T] = ShortestTurns(self._tokens)
        turns._ahead = self._ahead
        rest, by_length = dict.fromkeys(line), iter(sorted(line, key=self._tokens))
        shortest = next(by_length)
        found: list[T] = []
        while rest:
            while shortest not in rest:
                shortest = next(by_length)
            first = next(iter(rest))
            chosen = turns._next(first, shortest)
            turns._count(first, shortest, chosen, self._tokens(chosen))
            del rest[chosen]
            found.append(chosen)
        return found

    def count(self, line: Sequence[T], shares: Sequence[tuple[T, int]]) -> int:
        """Some of the line have had so many tokens. Return by how many the shortest came ahead with that, for
        `take_back`."""
        before, first, shortest = self._ahead, line[0], min(line, key=self._tokens)
        for each, tokens in shares:
            self._count(first, shortest, each, tokens)
        return self._ahead - before

    def take_back(self, lead: int) -> None:
        """A turn that was counted has come to nothing."""
        self._ahead -= lead

    def _next(self, first: T, shortest: T) -> T:
        return shortest if self._ahead <= 0 and self._tokens(shortest) < self._tokens(first) else first

    def _count(self, first: T, shortest: T, each: T, tokens: int) -> None:
        if self._tokens(shortest) == self._tokens(first):
            self._ahead = 0
        else:
            self._ahead += tokens * ((each is shortest) - (each is first))
