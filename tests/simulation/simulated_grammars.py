"""Grammars without processes and threads: what a fleet's workers try and follow in a world.

What is computed is real. A trial takes virtual time, and its process can be killed; masks are there when the
step asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache

import msgpack

from shared.engine.sampling.grammar_trial import try_grammar
from shared.engine.sampling.mask_threads import MaskJob
from shared.errors import Unavailable
from shared.process import job_runner
from shared.process.limited_jobs import JobEnd
from tests.simulation.simulated_model import Spend

TRIAL_US = 4000.0
"""The time of a trial, which is also what it says that compiling takes."""


class SimulatedTrials:
    """Stands in for the `LimitedJobs` that tries grammars. `is_killed`: whether its process is killed now."""

    def __init__(self, module: str, spend: Spend, is_killed: Callable[[], bool]) -> None:
        self._module = module
        self._spend = spend
        self._is_killed = is_killed

    def submit(self, payload: bytes) -> tuple[Future[JobEnd], Callable[[], None]]:
        self._spend(TRIAL_US)
        ending: Future[JobEnd] = Future()
        if self._is_killed():
            ending.set_exception(Unavailable(f"the process of {self._module} ended; try again"))
        else:
            ending.set_result(JobEnd(job_runner.DONE, _verdict(payload)))
        return ending, lambda: None

    def close(self) -> None:
        """There is no process to end."""


@cache
def _verdict(payload: bytes) -> bytes:
    """Return what the process says, with the same time whenever it is asked."""
    told = msgpack.unpackb(try_grammar(payload))
    return bytes(msgpack.packb(told if isinstance(told, str) else TRIAL_US / 1e6))


class SimulatedMasks:
    """Stands in for `MaskThreads`: each mask is quick, and there before anybody waits for it."""

    def begin(self, jobs: Sequence[MaskJob]) -> None:
        for job in jobs:
            _run(job)

    def begin_slow(self, job: MaskJob) -> None:
        raise AssertionError(f"a mask of {job.state.kind} was slow, in a world where none is")

    def await_change(self, timeout_s: float) -> None:
        """Nothing is awaited: all masks are there."""

    def rouse(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """There are no threads to end."""


def _run(job: MaskJob) -> None:
    """Compute its masks; the CPU time of this machine has no say in what a world does."""
    job.run()
    job._began_s = job._ended_s = 0.0
    job._mask_began_s = None
