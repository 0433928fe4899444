"""Compute masks in threads beside the step: quick ones in time for it, slow ones for as long as they take."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue

from shared.engine.sampling.grammar import GrammarState
from shared.engine.sampling.id_bits import IdBits
from shared.errors import InvalidRequest, PenstockError
from shared.process.niceness import make_stand_back, stand_back

STUCK_S = 0.001
"""A thread with a mask that has taken so much CPU time goes on beside; another one takes the next masks."""
GRACE_S = 0.002
"""The CPU time that a step, its logits computed, still leaves to masks that are not there."""
PATIENCE_S = 0.25
"""The longest wait of a step for masks to which the host gives no CPU time."""
LOOK_EVERY_S = 0.0005
MAX_STUCK_THREADS = 8
"""More masks that are found to be slow leave the next ones waiting until one of them is done."""
SLOW_THREADS = 2
"""The threads for masks of sequences whose masks were slow before."""


class MaskJob:
    """The masks for the next draws of one sequence, computed once. `is_proven`: those before were quick."""

    def __init__(self, state: GrammarState, drafts: Sequence[int], *, is_proven: bool) -> None:
        self.state = state
        self.drafts = tuple(drafts)
        self.is_proven = is_proven
        self.masks: list[IdBits | None] = []
        self.fault: PenstockError | None = None
        self.is_done = False
        self.awaited = False
        """A step has gone on without it."""
        self.held_up_step = False
        """The step computed it itself."""
        self._clock: int | None = None  # of the thread that computes it
        self._began_s = self._ended_s = 0.0
        self._mask_began_s: float | None = None  # not while it still comes to where the output is

    def run(self) -> None:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._began_s = time.clock_gettime(clock)
        self._clock = clock
        try:
            self.state.open_matcher()
            self._mask_began_s = time.clock_gettime(clock)
            self.masks = self.state.masks(self.drafts)
        except PenstockError as error:
            self.fault = error
        except BaseException as error:  # noqa: BLE001 - what a panic in Rust comes as: the grammar is the fault
            self.fault = InvalidRequest(
                f"the grammar ({self.state.kind}) cannot be followed ({type(error).__name__}); simplify it"
            )
        self._ended_s = time.clock_gettime(clock)
        self.is_done = True

    @property
    def cpu_s(self) -> float:
        """Return the CPU time that it has taken until now."""
        return self._now_s() - self._began_s

    @property
    def mask_cpu_s(self) -> float:
        """Return the CPU time that its masks have taken until now, by their number."""
        if self._mask_began_s is None:
            return 0.0
        return (self._now_s() - self._mask_began_s) / max(1, self.state.masks_begun)

    def _now_s(self) -> float:
        if self._clock is None or self.is_done:
            return self._ended_s
        return time.clock_gettime(self._clock)


class MaskBatch:
    """The quick masks of one step; those that are proven come first."""

    def __init__(self, jobs: Sequence[MaskJob], on_late: Callable[[], None]) -> None:
        self._waiting = deque(jobs)
        self._begun: list[MaskJob] = []
        self._left = len(jobs)
        self._on_late = on_late
        self._lock = threading.Lock()
        self.done = threading.Event()

    def run_next(self) -> bool:
        """Compute one; False where all have been begun."""
        try:
            job = self._waiting.popleft()
        except IndexError:
            return False
        self._run(job)
        return True

    def run_proven(self) -> None:
        """Compute, in the step itself, those that no thread has had a core for: the step would wait for one
        all the same. A row that is not quick any more ends this."""
        began_s = time.thread_time()
        while time.thread_time() - began_s < STUCK_S:
            try:
                job = self._waiting.popleft()
            except IndexError:
                return
            if not job.is_proven:
                self._waiting.appendleft(job)
                return
            job.held_up_step = True
            self._run(job)

    def _run(self, job: MaskJob) -> None:
        self._begun.append(job)
        job.run()
        with self._lock:
            self._left -= 1
        if not self._left:
            self.done.set()
        if job.awaited:
            self._on_late()

    @property
    def cpu_s(self) -> float:
        return sum(job.cpu_s for job in list(self._begun))

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_blocked(self) -> bool:
        """Return whether all that have begun wait for other threads."""
        return all(job.is_done or job.state.is_blocked for job in list(self._begun))

    @property
    def is_stuck(self) -> bool:
        """Return whether no mask that has been begun will be there soon."""
        running = [job for job in list(self._begun) if not job.is_done]
        return all(job.state.is_blocked or job.cpu_s >= STUCK_S for job in running) and bool(running)


class _Helper:
    """The thread that computes quick masks, until one of them is slow."""

    def __init__(self, batches: SimpleQueue[MaskBatch | None], first: MaskBatch | None) -> None:
        self.is_retired = False
        self._batches = batches
        self._thread = threading.Thread(target=self._work, args=(first,), name="masks", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def retire(self) -> None:
        """Compute nothing after this mask, and that without keeping others from the cores."""
        self.is_retired = True
        if self._thread.native_id is not None and self.is_alive:
            with suppress(ProcessLookupError):  # it has just ended
                make_stand_back(self._thread.native_id)

    def _work(self, batch: MaskBatch | None) -> None:
        while True:
            while batch is not None and batch.run_next():
                if self.is_retired:
                    return
            batch = self._batches.get()
            if batch is None:
                return
            if self.is_retired:
                self._batches.put(batch)
                return


class MaskThreads:
    """The engine's thread gives out work and waits for it; `rouse` is for any."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        self._batches: SimpleQueue[MaskBatch | None] = SimpleQueue()
        self._helper: _Helper | None = None
        self._stuck: list[_Helper] = []
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "slow-masks", initializer=stand_back)
        weakref.finalize(self, self._batches.put, None)  # the thread outlives nobody

    def begin(self, jobs: Sequence[MaskJob]) -> MaskBatch | None:
        """Begin those that are expected to be quick, in this order."""
        if not jobs:
            return None
        batch = MaskBatch(jobs, self._changed.set)
        if self._helper is None:
            self._helper = _Helper(self._batches, None)
        self._batches.put(batch)
        return batch

    def begin_slow(self, job: MaskJob) -> None:
        job.awaited = True
        changed = self._changed

        def run() -> None:
            job.run()
            changed.set()

        self._slow.submit(run)

    def wait(self, batch: MaskBatch) -> None:
        """Wait for its masks, though not for slow ones: those are not done then."""
        batch.run_proven()
        if batch.done.is_set():
            return
        began_s, spent_s = time.monotonic(), batch.cpu_s
        while not batch.done.wait(LOOK_EVERY_S):
            if batch.has_waiting:
                if batch.is_stuck and not self._go_on_beside(batch):
                    break
            elif batch.is_blocked:
                break
            if batch.cpu_s - spent_s >= GRACE_S or time.monotonic() - began_s >= PATIENCE_S:
                break
        if not batch.done.is_set():
            self._go_on_beside(batch)

    def _go_on_beside(self, batch: MaskBatch) -> bool:
        """Let another thread take over; False where too many were left behind."""
        self._stuck = [helper for helper in self._stuck if helper.is_alive]
        if self._helper is None or len(self._stuck) >= MAX_STUCK_THREADS:
            return False
        self._helper.retire()
        self._stuck.append(self._helper)
        self._helper = _Helper(self._batches, batch)
        return True

    def await_change(self, timeout_s: float) -> None:
        """Return as soon as a mask is there that a step has gone on without, or somebody roused."""
        self._changed.wait(timeout_s)
        self._changed.clear()

    def rouse(self) -> None:
        self._changed.set()

    def close(self) -> None:
        """Begin nothing more. A mask that is being computed ends by itself, and nobody waits for it."""
        self._batches.put(None)
        self._slow.shutdown(wait=False, cancel_futures=True)
