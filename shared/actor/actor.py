"""An actor: one owner of one piece of state, one bounded mailbox, one turn at a time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

import structlog

from shared.deadline import Deadline
from shared.errors import DeadlineExpired, InternalError, Overloaded, PenstockError, Unavailable
from shared.health import Activity

log = structlog.get_logger()

DATA_BATCH = 256
"""Data messages handled between two turns of work; control messages do not count."""

ON_STOP_TIMEOUT_S = 5.0
"""An actor that cannot give back what it holds must not keep its successor from starting."""


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A question in the mailbox; `handle` answers it, now or later."""

    item: Any
    future: asyncio.Future[Any]

    def answer(self, value: Any = None) -> None:
        """Nothing happens when the asker has given up."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: PenstockError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Actor(ABC):
    """Subclasses own state and override `handle`, and where they have work of their own, `turn`.

    Two lanes lead in: control messages (cancel, stop, a lost instance) are never behind data.
    All methods are for the event loop's thread; `asyncio.to_thread` work comes back by `await`.
    """

    def __init__(self, name: str, *, mailbox_limit: int = 1024, control_limit: int = 256) -> None:
        self.name = name
        self._mailbox_limit = mailbox_limit
        self._control_limit = control_limit
        self._data: deque[object] = deque()
        self._control: deque[object] = deque()
        self._asks: dict[Ask, None] = {}  # in the order in which they came
        self._wakeup = asyncio.Event()
        self._activity = Activity(f"the actor {name}")
        self._ended = False
        self._stopping = False

    # ---- for others -----------------------------------------------------------------------------

    def tell(self, item: object) -> None:
        """Put into the mailbox. Raises Overloaded when it is full, Unavailable after the end."""
        self._put(item, self._data, self._mailbox_limit)

    def tell_control(self, item: object) -> None:
        """Put into the priority lane: it is handled before all data."""
        self._put(item, self._control, self._control_limit)

    async def ask(self, item: object, deadline: Deadline) -> Any:
        """Put Ask(item) into the mailbox and wait for its answer until the deadline."""
        deadline.check(self.name)
        ask = Ask(item, asyncio.get_running_loop().create_future())
        self.tell(ask)
        self._asks[ask] = None
        try:
            async with deadline.timeout():
                return await ask.future
        except TimeoutError as error:
            if ask.future.cancelled():
                raise DeadlineExpired(
                    f"{self.name} gave no answer before the deadline", hop=self.name
                ) from error
            raise
        finally:
            self._asks.pop(ask, None)

    def wake(self) -> None:
        """Look again although no message came."""
        self._wakeup.set()

    @property
    def queued(self) -> int:
        """Messages in the mailbox."""
        return len(self._data) + len(self._control)

    def activities(self) -> tuple[Activity, ...]:
        """Return what has to move while it is busy: each message and each turn is a move of the actor
        itself."""
        return (self._activity,)

    # ---- for subclasses ---------------------------------------------------------------------------

    async def on_start(self) -> None:  # noqa: B027 - a hook: most actors have nothing to do here
        """Prepare, before the first message."""

    @abstractmethod
    async def handle(self, item: Any) -> None:
        """One message, or an Ask. An exception is a crash: the supervisor starts a new actor."""

    async def turn(self) -> bool:
        """One turn of work after the messages; True = there is more to do at once."""
        return False

    async def on_stop(self) -> None:  # noqa: B027 - a hook: most actors have nothing to do here
        """Give back what is held, after the last message and after a crash."""

    # ---- the loop -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until `stop`. Raises what crashed it; pending asks have failed by then."""
        try:
            await self.on_start()
            self._activity.begin()
            more = False
            while not self._stopping:
                if not more and not self.queued:
                    self._activity.end()
                    await self._wakeup.wait()
                    self._activity.begin()
                else:
                    await asyncio.sleep(0)
                self._wakeup.clear()
                await self._handle_waiting()
                more = await self.turn()
                self._activity.move()
        finally:
            self._activity.end()  # what follows has limits of its own
            self._ended = True
            await self._fail_waiting()
            async with asyncio.timeout(ON_STOP_TIMEOUT_S):
                await self.on_stop()

    def stop(self) -> None:
        """End after the message or turn in progress."""
        self._stopping = True
        self._wakeup.set()

    async def _handle_waiting(self) -> None:
        budget = DATA_BATCH
        while not self._stopping:
            if self._control:
                await self.handle(self._control.popleft())
            elif self._data and budget:
                budget -= 1
                await self.handle(self._data.popleft())
            else:
                return
            self._activity.move()

    def _put(self, item: object, lane: deque[object], limit: int) -> None:
        if self._ended:
            raise Unavailable(f"{self.name} has ended; ask again", retry_after_ms=100)
        if len(lane) >= limit:
            raise Overloaded(f"the mailbox of {self.name} is full ({limit} messages)", retry_after_ms=100)
        lane.append(item)
        self._wakeup.set()

    async def _fail_waiting(self) -> None:
        """Answer whoever waits, before the actor is gone."""
        error: PenstockError
        if self._stopping:
            error = Unavailable(f"{self.name} has stopped", hop=self.name)
        else:
            error = InternalError(f"{self.name} crashed; its log has the cause", hop=self.name)
        for ask in list(self._asks):
            ask.fail(error)
        waiting = [*self._control, *self._data]
        self._control.clear()
        self._data.clear()
        for item in waiting:
            if not isinstance(item, Ask):
                await self.abandon(item, error)

    async def abandon(self, item: object, error: PenstockError) -> None:
        """A message that will not be handled; overridden where someone waits for its answer."""
        log.debug("actor_message_abandoned", actor=self.name, item=type(item).__name__, error=error.message)
