"""Compile clients' grammars beside the steps: tried in a process that can be killed, then made here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic

import msgpack
import structlog

from shared.engine.sampling.grammar import CompiledGrammar, Grammars
from shared.engine.sampling.grammar_trial import TRIAL_LIMITS
from shared.engine.sampling.grammar_verdicts import GrammarVerdicts, Verdict
from shared.errors import Cancelled, InvalidRequest, Overloaded, PenstockError
from shared.process import job_runner
from shared.process.limited_jobs import LimitedJobs
from shared.process.niceness import give_way
from shared.sampling.parameters import Grammar
from shared.telemetry import metrics

log = structlog.get_logger()

MAX_WAITING_GRAMMARS = 32
"""Different ones that are being compiled or wait for it."""
TRIALS_AT_ONCE = 8
"""One that compiles slowly keeps no other waiting; so many of them would, each for the time of its trial."""
TRIAL = "shared.engine.sampling.grammar_trial"
TRIAL_GRACE_S = 5.0
"""The process itself may take so long to start, or to say how a trial ended."""
RETRY_AFTER_MS = 500
QUICK_GRAMMAR_S = 0.05
"""Grammars that took so little in their trial wait, as they are made here, for no other ones."""

GrammarResult = CompiledGrammar | PenstockError


class _Trial:
    """The trial of one grammar, which anybody may stop."""

    def __init__(self, jobs: LimitedJobs, grammar: Grammar) -> None:
        self._jobs = jobs
        self._grammar = grammar
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._stopped = False

    def run(self) -> Verdict:
        """Return the CPU time in seconds that the grammar takes, or why it cannot be used. Raises what says
        nothing about it."""
        with self._lock:
            if self._stopped:
                raise Cancelled("nobody waits for this grammar")
            ending, self._stop = self._jobs.submit(msgpack.packb([self._grammar.kind, self._grammar.text]))
        end = ending.result(TRIAL_LIMITS.wall_s + TRIAL_GRACE_S)
        match end.end:
            case job_runner.DONE:
                verdict: Verdict = msgpack.unpackb(end.result)
                return verdict
            case job_runner.FAILED:
                raise InvalidRequest(end.result.decode(errors="replace"))
            case job_runner.TOO_LONG | job_runner.TOO_MUCH:
                return (
                    f"the grammar ({self._grammar.kind}) is too complex: compiling it takes over "
                    f"{TRIAL_LIMITS.cpu_s:.0f} s or {TRIAL_LIMITS.memory_bytes >> 20} MiB; simplify it"
                )
            case job_runner.TOO_LATE:
                raise Overloaded(
                    f"no core was free to compile a grammar within {TRIAL_LIMITS.wall_s:.0f} s; try another "
                    "worker or later",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            case _:
                raise Cancelled("nobody waits for this grammar")

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop()


@dataclass(slots=True)
class _Compilation:
    future: Future[CompiledGrammar]
    began_s: float
    trial: _Trial
    keys: set[str] = field(default_factory=set)  # of those who wait for it


class GrammarCompiler:
    """Compiles grammars beside the event loop. Those who want the same grammar wait for the same compilation;
    `take_ended` returns what came of it, after a call of `wake`."""

    def __init__(self, hop: str, grammars: Grammars, wake: Callable[[], None]) -> None:
        self._hop = hop
        self._grammars = grammars
        self._wake = wake
        self._threads = ThreadPoolExecutor(TRIALS_AT_ONCE, "grammars", initializer=give_way)
        self._trials = LimitedJobs(TRIAL)
        self._verdicts = GrammarVerdicts()
        self._making, self._making_slow = threading.Lock(), threading.Lock()
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
            trial = _Trial(self._trials, grammar)
            future = self._threads.submit(self._compile, trial, grammar)
            compilation = self._waiting[grammar] = _Compilation(future, monotonic(), trial)
            future.add_done_callback(lambda done: self._on_compiled(grammar, done))
        compilation.keys.add(key)

    def forget(self, key: str) -> None:
        """`key` waits no longer. A compilation that nobody waits for is stopped, or does not begin."""
        self._ended = [ended for ended in self._ended if ended[0] != key]
        for grammar, compilation in list(self._waiting.items()):
            compilation.keys.discard(key)
            if not compilation.keys:
                compilation.trial.stop()
                if compilation.future.cancel():
                    del self._waiting[grammar]

    def take_ended(self) -> list[tuple[str, GrammarResult]]:
        """Return, by key, the results of compilations that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    async def close(self) -> None:
        """Stop what is tried, wait for the one that is being made, drop the others."""
        self._closed = True
        await asyncio.to_thread(self._trials.close)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _compile(self, trial: _Trial, grammar: Grammar) -> CompiledGrammar:
        took_s = self._verdicts.of(grammar, trial.run)
        with self._making if took_s <= QUICK_GRAMMAR_S else self._making_slow:
            return self._grammars.compile(grammar)

    def _on_compiled(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        """Hand on a result, in the compiler's thread, or here where it was cancelled before it began."""
        if not future.cancelled() and not self._closed:
            self._loop.call_soon_threadsafe(self._end, grammar, future)

    def _end(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        compilation = self._waiting.pop(grammar)
        if compilation.keys and isinstance(future.exception(), Cancelled):  # stopped, then wanted again
            for key in compilation.keys:
                self.begin(key, grammar)
            return
        metrics.HOP_SECONDS.labels(self._hop, "grammar").observe(monotonic() - compilation.began_s)
        result = _result_of(future)
        self._ended += [(key, result) for key in sorted(compilation.keys)]
        self._wake()


def _result_of(future: Future[CompiledGrammar]) -> GrammarResult:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, PenstockError):
        return error
    # A panic of the library: the grammar is the fault, and would be at every other worker.
    log.error("grammar_compiler_failed", exc_info=error)
    return InvalidRequest(f"the grammar cannot be compiled ({type(error).__name__}); simplify it")
