"""Remember how the trials of grammars ended, so that nobody makes a worker try one again and again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from cachetools import LRUCache

from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar

MAX_VERDICTS = 4096
"""Each is a digest and a time or a sentence: less than a kilobyte."""

Verdict = float | str
"""The CPU time in seconds that a grammar takes to compile, or the sentence with which it is refused."""


class GrammarVerdicts:
    """Verdicts by the digests of their grammars; those that were asked for least recently are forgotten."""

    def __init__(self) -> None:
        self._verdicts: LRUCache[bytes, Verdict] = LRUCache(MAX_VERDICTS)
        self._lock = threading.Lock()

    def of(self, grammar: Grammar, try_it: Callable[[], Verdict]) -> float:
        """Return the CPU time that it takes, as it was or as `try_it` finds. Raises InvalidRequest, now as
        then; what `try_it` raises says nothing about the grammar, and is not remembered."""
        verdict = self.find(grammar)
        if verdict is None:
            verdict = try_it()
            with self._lock:
                self._verdicts[_digest(grammar)] = verdict
        if isinstance(verdict, str):
            raise InvalidRequest(verdict)
        return verdict

    def find(self, grammar: Grammar) -> Verdict | None:
        """Return what is remembered of it."""
        with self._lock:
            return self._verdicts.get(_digest(grammar))


def _digest(grammar: Grammar) -> bytes:
    return hashlib.blake2b(f"{grammar.kind}\0{grammar.text}".encode(), digest_size=16).digest()
