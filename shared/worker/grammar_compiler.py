"""Compiles clients' grammars beside the steps: in a thread of its own, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic

import structlog

from shared.engine.sampling.grammar import CompiledGrammar, Grammars
from shared.errors import InvalidRequest, Overloaded, PenstockError
from shared.process.niceness import give_way
from shared.sampling.parameters import Grammar
from shared.telemetry import metrics

log = structlog.get_logger()

MAX_WAITING_GRAMMARS = 32
"""Different ones that are being compiled or wait for it; each takes up to half a second."""
RETRY_AFTER_MS = 500

GrammarResult = CompiledGrammar | PenstockError


@dataclass(slots=True)
class _Compilation:
    future: Future[CompiledGrammar]
    began_s: float
    keys: set[str] = field(default_factory=set)  # of those who wait for it


class GrammarCompiler:
    """Compiles grammars beside the event loop. Those who want the same grammar wait for the same compilation;
    `take_ended` returns what came of it, after a call of `wake`."""

    def __init__(self, hop: str, grammars: Grammars, wake: Callable[[], None]) -> None:
        self._hop = hop
        self._grammars = grammars
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "grammars", initializer=give_way)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Grammar, _Compilation] = {}
        self._ended: list[tuple[str, GrammarResult]] = []
        self._closed = False

    def check_room(self, grammar: Grammar | None) -> None:
        """Raises Overloaded when `begin` would have to wait behind too many."""
        if grammar is None or grammar in self._waiting or len(self._waiting) < MAX_WAITING_GRAMMARS:
            return
        if self._grammars.cached(grammar) is None:
            raise Overloaded(
                f"{len(self._waiting)} grammars wait to be compiled; try another worker or later",
                hop=self._hop,
                retry_after_ms=RETRY_AFTER_MS,
            )

    def begin(self, key: str, grammar: Grammar) -> None:
        """Compile it for `key`, at once if it has been lately. Call `check_room` before."""
        compiled = self._grammars.cached(grammar)
        if compiled is not None:
            self._ended.append((key, compiled))
            self._wake()
            return
        compilation = self._waiting.get(grammar)
        if compilation is None:
            future = self._thread.submit(_compile, self._grammars, grammar)
            compilation = self._waiting[grammar] = _Compilation(future, monotonic())
            future.add_done_callback(lambda done: self._on_compiled(grammar, done))
        compilation.keys.add(key)

    def forget(self, key: str) -> None:
        """`key` waits no longer. A compilation that nobody waits for does not begin."""
        self._ended = [ended for ended in self._ended if ended[0] != key]
        for grammar, compilation in list(self._waiting.items()):
            compilation.keys.discard(key)
            if not compilation.keys and compilation.future.cancel():
                del self._waiting[grammar]

    def take_ended(self) -> list[tuple[str, GrammarResult]]:
        """Return, by key, the results of compilations that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    async def close(self) -> None:
        """Wait for the one that is running, drop the others."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)

    def _on_compiled(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        """Hand on a result, in the compiler's thread, or here where it was cancelled before it began."""
        if not future.cancelled() and not self._closed:
            self._loop.call_soon_threadsafe(self._end, grammar, future)

    def _end(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        compilation = self._waiting.pop(grammar)
        metrics.HOP_SECONDS.labels(self._hop, "grammar").observe(monotonic() - compilation.began_s)
        result = _result_of(future)
        self._ended += [(key, result) for key in sorted(compilation.keys)]
        self._wake()


def _compile(grammars: Grammars, grammar: Grammar) -> CompiledGrammar:
    return grammars.compile(grammar)


def _result_of(future: Future[CompiledGrammar]) -> GrammarResult:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, PenstockError):
        return error
    # A panic of the library: the grammar is the fault, and would be at every other worker.
    log.error("grammar_compiler_failed", exc_info=error)
    return InvalidRequest(f"the grammar cannot be compiled ({type(error).__name__}); simplify it")
