"""Compile clients' grammars beside the steps: tried in a process that can be killed, then made here.

What has been tried by another worker, which says so, is made here without a trial.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

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
from shared.seams.clock import SYSTEM_CLOCK
from shared.seams.threads import THREADS
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
OTHERS_TRIAL_S = 2.0
"""The longest wait for another worker's verdict: twice the CPU time of a trial. Then it is tried here."""
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
            metrics.GRAMMAR_TRIALS.inc()
            ending, self._stop = self._jobs.submit(msgpack.packb([self._grammar.kind, self._grammar.text]))
        try:
            end = ending.result(TRIAL_LIMITS.wall_s + TRIAL_GRACE_S)
        except TimeoutError as error:  # the process that tries it has had no core
            self._stop()
            raise _no_core() from error
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
                raise _no_core()
            case _:
                raise Cancelled("nobody waits for this grammar")

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop()


@dataclass(slots=True)
class _Compilation:
    """`future` is there from when it begins here: until then another worker's verdict is waited for."""

    began_s: float
    trial: _Trial
    future: Future[CompiledGrammar] | None = None
    patience: asyncio.TimerHandle | None = None
    verdict: Verdict | None = None  # of the trial here
    keys: set[str] = field(default_factory=set)  # of those who wait for it


def _no_core() -> Overloaded:
    return Overloaded(
        f"no core was free to compile a grammar within {TRIAL_LIMITS.wall_s:.0f} s; try another worker or "
        "later",
        retry_after_ms=RETRY_AFTER_MS,
    )


def _tell_nobody(_key: str, _verdict: Verdict) -> None: ...


class GrammarCompiler:
    """Compiles grammars beside the event loop. Those who want the same grammar wait for the same compilation;
    `take_ended` returns what came of it, after a call of `wake`. `tell` is called with each of them as soon
    as the trial has ended, or at once where that was before."""

    def __init__(
        self,
        hop: str,
        grammars: Grammars,
        wake: Callable[[], None],
        tell: Callable[[str, Verdict], None] = _tell_nobody,
    ) -> None:
        self._hop = hop
        self._grammars = grammars
        self._wake = wake
        self._tell = tell
        self._threads = THREADS.pool(TRIALS_AT_ONCE, "grammars", initializer=give_way)
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

    def begin(self, key: str, grammar: Grammar, *, tried_elsewhere: bool = False) -> None:
        """Compile it for `key`, at once if it has been lately. Call `check_room` before. `tried_elsewhere`:
        another worker tries it for the same request, so that `hear` is to be called."""
        compiled = self._grammars.cached(grammar)
        if compiled is not None:
            self._ended.append((key, compiled))
            self._tell(key, self._verdicts.find(grammar) or 0.0)
            self._wake()
            return
        compilation = self._waiting.get(grammar)
        if compilation is None:
            compilation = self._waiting[grammar] = _Compilation(
                SYSTEM_CLOCK.monotonic_s(), _Trial(self._trials, grammar)
            )
        compilation.keys.add(key)
        if compilation.verdict is not None:
            self._tell(key, compilation.verdict)
        if compilation.future is not None:
            return
        if not tried_elsewhere or self._verdicts.find(grammar) is not None:
            self._start(grammar, compilation)
        elif compilation.patience is None:
            compilation.patience = self._loop.call_later(OTHERS_TRIAL_S, self._start, grammar, compilation)

    def hear(self, key: str, verdict: Verdict) -> None:
        """The worker that tries it for the same request has done so. It is believed for what waits now, and
        not remembered."""
        for grammar, compilation in self._waiting.items():
            if key in compilation.keys and compilation.future is None:
                self._start(grammar, compilation, verdict)
                return

    def forget(self, key: str) -> None:
        """`key` waits no longer. A compilation that nobody waits for is stopped, or does not begin."""
        self._ended = [ended for ended in self._ended if ended[0] != key]
        for grammar, compilation in list(self._waiting.items()):
            compilation.keys.discard(key)
            if not compilation.keys:
                compilation.trial.stop()
                if compilation.future is None:
                    _end_patience(compilation)
                if compilation.future is None or compilation.future.cancel():
                    del self._waiting[grammar]

    def take_ended(self) -> list[tuple[str, GrammarResult]]:
        """Return, by key, the results of compilations that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    async def close(self) -> None:
        """Stop what is tried, wait for the one that is being made, drop the others."""
        self._closed = True
        for compilation in self._waiting.values():
            _end_patience(compilation)
        await asyncio.to_thread(self._trials.close)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _start(self, grammar: Grammar, compilation: _Compilation, heard: Verdict | None = None) -> None:
        _end_patience(compilation)
        future = self._threads.submit(self._compile, compilation.trial, grammar, heard)
        compilation.future = future
        future.add_done_callback(lambda done: self._on_compiled(grammar, done))

    def _compile(self, trial: _Trial, grammar: Grammar, heard: Verdict | None) -> CompiledGrammar:
        if isinstance(heard, str):
            raise InvalidRequest(heard)
        took_s = self._took_s(trial, grammar) if heard is None else heard
        with self._making if took_s <= QUICK_GRAMMAR_S else self._making_slow:
            return self._grammars.compile(grammar)

    def _took_s(self, trial: _Trial, grammar: Grammar) -> float:
        """Return the CPU time that it takes, as it was or as a trial finds, and let the loop tell of it."""
        try:
            return self._verdicts.of(grammar, trial.run)
        finally:
            verdict = self._verdicts.find(grammar)
            if verdict is not None and not self._closed:
                self._loop.call_soon_threadsafe(self._on_tried, grammar, verdict)

    def _on_tried(self, grammar: Grammar, verdict: Verdict) -> None:
        compilation = self._waiting.get(grammar)
        if compilation is not None:
            compilation.verdict = verdict
            for key in sorted(compilation.keys):
                self._tell(key, verdict)

    def _on_compiled(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        """Hand on a result, in the compiler's thread, or here where it was cancelled before it began."""
        if not future.cancelled() and not self._closed:
            self._loop.call_soon_threadsafe(self._end, grammar, future)

    def _end(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        compilation = self._waiting.pop(grammar)
        if compilation.keys and isinstance(future.exception(), Cancelled):  # stopped, then wanted again
            for key in sorted(compilation.keys):
                self.begin(key, grammar)
            return
        metrics.HOP_SECONDS.labels(self._hop, "grammar").observe(
            SYSTEM_CLOCK.monotonic_s() - compilation.began_s
        )
        result = _result_of(future)
        self._ended += [(key, result) for key in sorted(compilation.keys)]
        self._wake()


def _end_patience(compilation: _Compilation) -> None:
    if compilation.patience is not None:
        compilation.patience.cancel()
        compilation.patience = None


def _result_of(future: Future[CompiledGrammar]) -> GrammarResult:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, PenstockError):
        return error
    # A panic of the library: the grammar is the fault, and would be at every other worker.
    log.error("grammar_compiler_failed", exc_info=error)
    return InvalidRequest(f"the grammar cannot be compiled ({type(error).__name__}); simplify it")
