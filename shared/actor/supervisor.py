"""One-for-one supervision: a crashed actor or task is started anew, but not for ever.

Whatever ends a child unasked is a crash, also what is no Exception: a panic in an extension, a CancelledError
that nobody asked for. No child ends in silence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import structlog

from shared.actor.actor import Actor
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import InternalError
from shared.health import Activity
from shared.tasks import start_task
from shared.telemetry import metrics

log = structlog.get_logger()

A = TypeVar("A", bound=Actor)

MAX_RESTARTS = 5
WINDOW_S = 10.0
STOP_TIMEOUT_S = 5.0


class ActorRef(Generic[A]):
    """A reference that stays valid over restarts: it always speaks to the living actor."""

    def __init__(self, actor: A) -> None:
        self.living = actor
        """The actor as it is now; look it up at each use."""

    def tell(self, item: object) -> None:
        self.living.tell(item)

    def tell_control(self, item: object) -> None:
        self.living.tell_control(item)

    async def ask(self, item: object, deadline: Deadline) -> Any:
        return await self.living.ask(item, deadline)

    def wake(self) -> None:
        self.living.wake()


class Supervisor:
    """Restarts its children at most `max_restarts` times in `window_s`, then fails. One that owns what cannot
    be repaired in place is not restarted at all."""

    def __init__(
        self, *, max_restarts: int = MAX_RESTARTS, window_s: float = WINDOW_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._clock = clock
        self._crashes: deque[float] = deque()
        self._children: list[tuple[asyncio.Task[None], ActorRef[Any] | None]] = []
        self._failed = asyncio.Event()
        self._stopping = False
        self.failure: InternalError | None = None
        """Why this supervisor gave up; None while it has not."""

    def start(self, factory: Callable[[], A]) -> ActorRef[A]:
        """Start an actor. Messages may be told at once."""
        ref = ActorRef(factory())
        self._add(self._keep_actor(ref, factory), ref.living.name, ref)
        return ref

    def start_once(self, actor: A) -> A:
        """Start an actor whose crash fails the supervisor; it has answered whom it could by then."""
        self._add(self._keep_once(actor), actor.name, ActorRef(actor))
        return actor

    def start_task(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a background coroutine; it is started again when it raises, not when it returns."""
        self._add(self._keep_task(name, factory), name, None)

    def activities(self) -> list[Activity]:
        """Return the activities of all its actors, as they are now; may be asked from any thread."""
        return [one for _, ref in list(self._children) if ref is not None for one in ref.living.activities()]

    async def run_until(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises InternalError when a child crashed too often."""
        waits = [start_task(stop.wait(), name="stop"), start_task(self._failed.wait(), name="failed")]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if self.failure is not None:
            raise self.failure

    async def stop(self, deadline: Deadline | None = None) -> None:
        """Stop the children in reverse order; who does not end by the deadline is cancelled."""
        self._stopping = True
        deadline = deadline or Deadline.after(STOP_TIMEOUT_S)
        for task, ref in reversed(self._children):
            if ref is None:
                task.cancel()
            else:
                ref.living.stop()
                await asyncio.wait([task], timeout=deadline.remaining_s())
                task.cancel()
            await asyncio.wait([task], timeout=max(0.1, deadline.remaining_s()))
            if not task.done():
                log.error("actor_does_not_stop", actor=task.get_name())
        self._children.clear()

    # ---- keeping ----------------------------------------------------------------------------------

    def _add(self, keeper: Coroutine[Any, Any, None], name: str, ref: ActorRef[Any] | None) -> None:
        task = start_task(keeper, name=name)
        task.add_done_callback(self._on_kept)
        self._children.append((task, ref))

    async def _keep_actor(self, ref: ActorRef[A], factory: Callable[[], A]) -> None:
        while (error := await _crash(ref.living.run())) is not None:
            if not self._may_restart(ref.living.name, error):
                return
            try:
                ref.living = factory()
            except BaseException as why:  # noqa: BLE001 - a factory that fails is a crash too
                self._give_up(ref.living.name, why)
                return

    async def _keep_once(self, actor: Actor) -> None:
        error = await _crash(actor.run())
        if error is not None:
            self._fail(actor.name, f"{actor.name} crashed", error)

    async def _keep_task(self, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while (error := await _crash(factory())) is not None:
            if not self._may_restart(name, error):
                return

    def _on_kept(self, keeper: asyncio.Task[None]) -> None:
        """The backstop: a keeper that was ended by whatever it does not catch."""
        error = asyncio.CancelledError() if keeper.cancelled() else keeper.exception()
        if error is not None and not self._stopping:
            self._fail(keeper.get_name(), f"the keeper of {keeper.get_name()} ended", error)

    def _may_restart(self, name: str, error: BaseException) -> bool:
        now_s = self._clock.monotonic_s()
        self._crashes.append(now_s)
        while self._crashes and now_s - self._crashes[0] > self._window_s:
            self._crashes.popleft()
        if len(self._crashes) > self._max_restarts:
            self._give_up(name, error)
            return False
        metrics.ACTOR_RESTARTS.labels(name=name).inc()
        log.error("actor_crashed", actor=name, exc_info=error)
        return True

    def _give_up(self, name: str, error: BaseException) -> None:
        times = f"{len(self._crashes)} times in {self._window_s:g} s, last"
        self._fail(name, f"{name} crashed {times}", error)

    def _fail(self, name: str, what: str, error: BaseException) -> None:
        log.error("supervisor_gives_up", actor=name, crashes=len(self._crashes), exc_info=error)
        self.failure = InternalError(f"{what} with {type(error).__name__}; the log has the tracebacks")
        self._failed.set()


async def _crash(life: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return what ended `life`, None when it ended by itself. Who is cancelled by its keeper's cancellation
    has not
    crashed: that is raised."""
    task = asyncio.current_task()
    assert task is not None
    cancels = task.cancelling()
    try:
        await life
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > cancels:
            raise
        return error
    return None
