"""An event loop whose time jumps to the next timer when nothing is ready, in an order that a seed decides.

It has timers, tasks and pools, and no sockets, processes or signals: who asks for one is refused by name.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, NoReturn

from tests.simulation.node import NANOSECONDS, NODE, Node, NodeState, counted
from tests.simulation.simulated_pool import SimulatedPool
from tests.simulation.trace import Trace

MAX_CALLS_AT_ONE_INSTANT = 200_000
"""So many calls without any time that passes are going round in a circle."""
NAMED_CALLS = 1_000
"""Of the last of those calls the most frequent ones are named."""
RUNNING, CRASHED = NodeState.RUNNING, NodeState.CRASHED
DEFAULT_THREADS = 32
"""Threads of `asyncio.to_thread`, of each node."""


class RealWorldTouched(RuntimeError):
    """Something asked for what lies outside of the simulation."""


class Livelock(RuntimeError):
    """Calls follow each other for ever, at one instant."""


class NothingToWaitFor(RuntimeError):
    """Nothing is ready, no timer runs, and what is waited for has not ended."""


class SimulatedTask(asyncio.Task[Any]):
    """Sets of tasks have the same order in each run: their hashes are numbers that are given in turn."""

    serial: int
    node: Node

    def __hash__(self) -> int:
        return self.serial


class SimulatedFuture(asyncio.Future[Any]):
    serial: int

    def __hash__(self) -> int:
        return self.serial


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self, random: Random, home: Node, trace: Trace) -> None:
        """`home` is the node of what was begun outside of all others."""
        super().__init__()
        self.home = home
        self.trace = trace
        self.faults: list[BaseException] = []
        """What a callback has raised: the world's run ends with the first."""
        self.before_call: Callable[[Node], None] | None = None
        """Called before each call, with its node: who crashes that one there takes the call from it."""
        self._random = random
        self._now_ns = 0
        self.nodes: list[Node] = [home]
        """All that there have been, each life of its own."""
        self._with_ready: list[Node] = []
        """Who has calls that are ready, since the longest first; some may have crashed since."""
        self._timers: list[tuple[int, float, int, events.TimerHandle]] = []
        self._dead_timers = 0
        self._serials = 0
        self._calls_now = 0
        self._job_spent_ns: int | None = None
        self._default_pools: dict[Node, SimulatedPool] = {}
        self.set_exception_handler(_note_fault)

    # ---- time -------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """The world's time; within a job, with what the job has taken so far."""
        return self._now_ns + (self._job_spent_ns or 0)

    def time(self) -> float:
        """The monotonic clock of the node that asks."""
        return NODE.get(self.home).monotonic_s(self._now_ns + (self._job_spent_ns or 0))

    @property
    def node(self) -> Node:
        """The node that what runs now belongs to."""
        return NODE.get(self.home)

    def run_forever(self) -> None:
        self._calls_now = 0
        super().run_forever()

    def add_node(self, node: Node) -> None:
        self.nodes.append(node)

    # ---- calls ------------------------------------------------------------------------------------

    def _call_soon(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._put(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        """From a job: when the job has come so far."""
        if self._job_spent_ns:
            return self._call_at_ns(self.now_ns, callback, args, context)
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        """`when` is on the clock of the node that asks."""
        return self._call_at_ns(self.node.world_ns(when), callback, args, context, when)

    def call_in_ns(
        self, delay_ns: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        """By the world's own clock: for what lies between nodes."""
        return self._call_at_ns(self.now_ns + delay_ns, callback, args, context)

    def _call_at_ns(
        self,
        at_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float | None = None,
    ) -> events.TimerHandle:
        shown = self.node.monotonic_ns(at_ns) / NANOSECONDS if when is None else when
        if self.is_closed():
            raise RuntimeError("the world has ended")
        handle = events.TimerHandle(shown, callback, args, self, context)
        internals(handle)._scheduled = True
        heapq.heappush(self._timers, (at_ns, self._random.random(), self._serial(), handle))
        return handle

    def _timer_handle_cancelled(self, _handle: events.TimerHandle) -> None:
        self._dead_timers += 1
        if self._dead_timers > 100 and self._dead_timers * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[3].cancelled()]
            heapq.heapify(self._timers)
            self._dead_timers = 0

    def _put(self, handle: events.Handle) -> None:
        context: Context = internals(handle)._context
        node = context.get(NODE, self.home)
        if node.state is not CRASHED:
            if not node.ready:
                self._with_ready.append(node)
            node.ready.append(handle)
        elif task_of(handle) is not None:
            node.missed.append(handle)

    def put_missed(self, node: Node) -> None:
        """Let tasks of a node that had crashed go on: nothing else would wake them."""
        missed, node.missed = node.missed, []
        for handle in missed:
            if task_of(handle) is not None:
                self._put(handle)

    def _serial(self) -> int:
        self._serials += 1
        return self._serials

    # ---- one step ---------------------------------------------------------------------------------

    def _run_once(self) -> None:
        if self.faults:
            raise self.faults.pop(0)
        if self._timers and self._timers[0][0] <= self._now_ns:
            self._put_due()
        while not (able := self._able()):
            self._jump()
            self._put_due()
        self._calls_now += 1
        if self._calls_now > MAX_CALLS_AT_ONE_INSTANT:
            last = Counter(f"{one.what} of {one.node}" for one in list(self.trace.last)[-NAMED_CALLS:])
            raise Livelock(
                f"{self._calls_now} calls at {self._now_ns / NANOSECONDS:.6f} s and no time passes; the last "
                f"{NAMED_CALLS} were {counted(last)}"
            )
        node = able[0] if len(able) == 1 else able[self._random.randrange(len(able))]
        handle = node.ready.popleft()
        if not node.ready:
            self._with_ready.remove(node)
        if handle.cancelled():
            return
        if self.before_call is not None:
            self.before_call(node)
            if node.state is CRASHED:
                node.missed.append(handle)
                return
        self.trace.called(self._now_ns, node.name, what_of(handle))
        internals(handle)._run()

    def _able(self) -> list[Node]:
        """Return who runs and has calls that are ready."""
        able = [node for node in self._with_ready if node.ready and node.state is RUNNING]
        if not able:
            self._with_ready = [node for node in self._with_ready if node.ready]
        return able

    def _put_due(self) -> None:
        while self._timers and (self._timers[0][0] <= self._now_ns or self._timers[0][3].cancelled()):
            *_, handle = heapq.heappop(self._timers)
            internals(handle)._scheduled = False
            if handle.cancelled():
                self._dead_timers -= 1
            else:
                self._put(handle)

    def _jump(self) -> None:
        if not self._timers:
            waiting = sorted(
                f"{task.get_name()} of {node.name} ({node.state.value})"
                for node in self.nodes
                if node.state is not NodeState.CRASHED
                for task in node.tasks
                if not task.done()
            )
            raise NothingToWaitFor(f"nothing is ready and no timer runs; these wait: {', '.join(waiting)}")
        self._now_ns = max(self._now_ns, self._timers[0][0])
        self._calls_now = 0

    # ---- tasks and futures ------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        future = SimulatedFuture(loop=self)
        future.serial = self._serial()
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        node = self.node if context is None else context.get(NODE, self.home)
        serial = self._serial()
        task = SimulatedTask.__new__(SimulatedTask)
        task.node, task.serial = node, serial  # before anything puts it into a set
        task.__init__(coro, loop=self, name=str(name or f"task-{serial}"), context=context)  # type: ignore[misc]
        node.tasks.add(task)
        return task

    # ---- threads ----------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if executor is None:
            executor = self._default_pools.get(self.node)
            if executor is None:
                executor = SimulatedPool(self, DEFAULT_THREADS, "asyncio")
                self._default_pools[self.node] = executor
        if not isinstance(executor, SimulatedPool):
            raise RealWorldTouched(f"{type(executor).__name__} has real threads: make it by THREADS.pool")
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    def run_job(self, func: Callable[[], object]) -> int:
        """Call `func` as a thread would, beside the loop; return the ns that it said it takes."""
        if self._job_spent_ns is not None:
            raise RuntimeError("a job began within a job")
        before, self._job_spent_ns = events._get_running_loop(), 0
        events._set_running_loop(None)
        try:
            func()
            return self._job_spent_ns
        finally:
            self._job_spent_ns = None
            events._set_running_loop(before)

    def spend_ns(self, nanoseconds: int) -> None:
        """What runs as a job now takes so long for what it has just done; without a job nothing happens."""
        if self._job_spent_ns is not None:
            self._job_spent_ns += nanoseconds

    # ---- what there is not ------------------------------------------------------------------------

    async def shutdown_default_executor(self) -> None:
        """There are no threads to wait for."""

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: SimulatedLoop, *_args: object, **_named: object) -> NoReturn:
        raise RealWorldTouched(f"{self.node.name} asked its event loop for {name}: a simulation has none")

    return refuse


REFUSED = (
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server", "start_tls"),
    *("create_datagram_endpoint", "connect_accepted_socket", "sendfile", "getaddrinfo", "getnameinfo"),
    *("sock_recv", "sock_recv_into", "sock_sendall", "sock_connect", "sock_accept", "sock_sendfile"),
    *(
        "add_reader",
        "remove_reader",
        "add_writer",
        "remove_writer",
        "connect_read_pipe",
        "connect_write_pipe",
    ),
    *("subprocess_exec", "subprocess_shell", "add_signal_handler", "remove_signal_handler"),
)
"""What an event loop can be asked for that leaves its process."""
for _name in REFUSED:
    setattr(SimulatedLoop, _name, _refusing(_name))


def task_of(handle: Any) -> SimulatedTask | None:
    """Return the task of which a call is a step."""
    owner = getattr(handle._callback, "__self__", None)
    return owner if owner.__class__ is SimulatedTask else None


def what_of(handle: Any) -> str:
    """Say what a call is, the same in each run."""
    task = task_of(handle)
    if task is not None:
        return task.get_name()
    callback = handle._callback
    while callback.__class__ is partial:
        callback = callback.func
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


def internals(handle: events.Handle) -> Any:
    """A handle, with what asyncio keeps to itself."""
    return handle


def _note_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback has raised. What is said of what was thrown away comes when memory is freed: at no moment
    that would be the same in each run."""
    assert isinstance(loop, SimulatedLoop)
    if "handle" in context and (error := context.get("exception")) is not None:
        loop.faults.append(error)
