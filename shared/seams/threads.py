"""Pools of threads for what may not hold up the event loop. A simulation runs their work in its own loop.

`asyncio.to_thread` and the default executor need no seam: they ask the event loop for a thread, and a
simulated loop has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

MakePool = Callable[[int, str, Callable[..., object] | None, tuple[Any, ...]], Executor]
"""(threads, name, initializer, its arguments): a pool of so many threads."""


class Threads:
    """Makes the pools of a process."""

    __slots__ = ("_make_pool",)

    def __init__(self) -> None:
        self._make_pool: MakePool = ThreadPoolExecutor

    def pool(
        self,
        threads: int,
        name: str,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> Executor:
        """Return `threads` threads named after `name`; each calls `initializer` before its work."""
        return self._make_pool(threads, name, initializer, initargs)

    @contextmanager
    def replaced_by(self, make_pool: MakePool) -> Iterator[None]:
        """Make pools by `make_pool` in this block."""
        real, self._make_pool = self._make_pool, make_pool
        try:
            yield
        finally:
            self._make_pool = real


THREADS = Threads()
