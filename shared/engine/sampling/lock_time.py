"""Count for how long a grammar keeps Python's lock: nothing else of the process moves meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

ORDINARY_S = 0.001
"""The CPU time in which a token is taken in, or a few; that of ordinary grammars is a tenth of it."""


class LockTime:
    """The CPU time that one sequence's tokens took to take in, of those that took more than is ordinary."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.last_s = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what the calling thread does in here, which it does under the lock."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self.last_s = time.thread_time() - began_s
            if self.last_s > ORDINARY_S:
                self.spent_s += self.last_s
