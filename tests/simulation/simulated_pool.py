"""A pool of threads whose work is done in the loop, and takes simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.simulated_loop import SimulatedLoop

QUICKEST_HOP_NS, SLOWEST_HOP_NS = 5_000, 200_000
"""The time until a thread begins, and again until the loop hears of its end."""


class JobFuture(Future[Any]):
    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            raise RuntimeError("a job's end was waited for by a call that blocks: nothing could ever end it")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            raise RuntimeError("a job's end was waited for by a call that blocks: nothing could ever end it")
        return super().exception(timeout)


class SimulatedPool(Executor):
    """At most `threads` jobs at a time, the others in turn. A job is done at the moment at which it begins;
    what it tells the loop, and its end, come when it has taken as long as it says
    (`SimulatedLoop.spend_ns`)."""

    def __init__(self, loop: SimulatedLoop, threads: int, name: str) -> None:
        self.name = name
        self._loop = loop
        self._node = loop.node
        self._free = threads
        self._waiting: deque[tuple[Callable[[], Any], JobFuture]] = deque()
        self._busy_until_ns = 0
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = JobFuture()
        self._waiting.append((partial(fn, *args, **kwargs), future))
        self._begin_next()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        while cancel_futures and self._waiting:
            _, future = self._waiting.popleft()
            future.cancel()
        if wait:
            self._loop.spend_ns(max(0, self._busy_until_ns + SLOWEST_HOP_NS - self._loop.now_ns))

    def _begin_next(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            job, future = self._waiting.popleft()
            context = self._node.context.copy()
            self._loop.call_in_ns(self._hop_ns(), self._run, job, future, context=context)

    def _run(self, job: Callable[[], Any], future: JobFuture) -> None:
        if not future.set_running_or_notify_cancel():
            self._end(lambda: None)
            return
        ended: list[Callable[[], None]] = []

        def do() -> None:
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - it is its caller's
                ended.append(partial(future.set_exception, error))
            else:
                ended.append(partial(future.set_result, result))

        spent_ns = self._loop.run_job(do)
        after_ns = spent_ns + self._hop_ns()
        self._busy_until_ns = max(self._busy_until_ns, self._loop.now_ns + after_ns)
        self._loop.call_in_ns(after_ns, self._end, ended[0], context=copy_context())

    def _end(self, tell: Callable[[], None]) -> None:
        self._free += 1
        self._begin_next()
        tell()

    def _hop_ns(self) -> int:
        return self._node.random.randrange(QUICKEST_HOP_NS, SLOWEST_HOP_NS)
