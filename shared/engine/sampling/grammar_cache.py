"""Keep compiled grammars by what it took to compile them (Greedy-Dual: Young 1994, "The k-server dual").

A worker does not know whose a grammar is, so it shares no room out among tenants. Instead a grammar stays for
as long as others have not taken as much time as it did: who pushes out one that took half a second to compile
has first had half a second compiled for each place of the cache, of however many grammars that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.sampling.parameters import Grammar

C = TypeVar("C")


@dataclass(slots=True)
class _KeptCompiled(Generic[C]):
    """`credit_s` is what the cache has risen to when the grammar was used last, and its cost."""

    compiled: C
    cost_s: float
    credit_s: float


class GrammarCache(Generic[C]):
    """Keeps at most `most` grammars; of those with equal credit the one used least lately goes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._risen_s = 0.0
        self._kept: dict[Grammar, _KeptCompiled[C]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, grammar: Grammar) -> C | None:
        """Return what was kept of the grammar, which counts as a use."""
        kept = self._kept.pop(grammar, None)
        if kept is None:
            return None
        kept.credit_s = self._risen_s + kept.cost_s
        self._kept[grammar] = kept
        return kept.compiled

    def put(self, grammar: Grammar, compiled: C, cost_s: float) -> None:
        """Keep a grammar that took `cost_s` to compile; where there is no room, one of least credit goes."""
        self._kept.pop(grammar, None)
        while len(self._kept) >= self._most:
            least = min(self._kept, key=lambda each: self._kept[each].credit_s)
            self._risen_s = self._kept.pop(least).credit_s
        self._kept[grammar] = _KeptCompiled(compiled, cost_s, self._risen_s + cost_s)
