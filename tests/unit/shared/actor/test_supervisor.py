"""Supervision: one for one, with an intensity limit, then failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shared.actor import Actor, Ask, Supervisor
from shared.deadline import Deadline
from shared.errors import InternalError
from tests.support.clock import FakeClock
from tests.support.wait import until


class Panic(BaseException):
    """As those of extensions in Rust: no Exception."""


class Child(Actor):
    """Crashes on "boom", "panic" and "cancelled"; answers every Ask with its number."""

    made = 0

    def __init__(self) -> None:
        super().__init__("child")
        Child.made += 1
        self.number = Child.made
        self.stopped = False

    async def handle(self, item: Any) -> None:
        if isinstance(item, Ask):
            item.answer(self.number)
        elif item == "boom":
            raise ValueError("boom")
        elif item == "panic":
            raise Panic
        elif item == "cancelled":
            raise asyncio.CancelledError
        elif item == "hang":
            await asyncio.Event().wait()

    async def on_stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _count_from_zero() -> None:
    Child.made = 0


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(max_restarts=2, window_s=10.0, clock=FakeClock())
    yield supervisor
    await supervisor.stop()


def made(count: int) -> Callable[[], bool]:
    return lambda: Child.made == count


def soon() -> Deadline:
    return Deadline.after(5.0)


async def test_a_crashed_actor_is_replaced_behind_its_reference(supervisor: Supervisor) -> None:
    ref = supervisor.start(Child)
    first = ref.living
    assert await ref.ask("?", soon()) == 1
    ref.tell("boom")
    await until(lambda: ref.living is not first)
    assert await ref.ask("?", soon()) == 2
    assert first.stopped


@pytest.mark.parametrize("fault", ["panic", "cancelled"])
async def test_what_is_no_exception_is_a_crash_like_any_other(supervisor: Supervisor, fault: str) -> None:
    ref = supervisor.start(Child)
    first = ref.living
    ref.tell(fault)
    await until(lambda: ref.living is not first)
    assert await ref.ask("?", soon()) == 2
    assert first.stopped


@pytest.mark.parametrize("fault", [Panic(), asyncio.CancelledError()])
async def test_a_task_that_ends_with_no_exception_is_restarted(
    supervisor: Supervisor, fault: BaseException
) -> None:
    runs: list[int] = []

    async def task() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise fault

    supervisor.start_task("task", task)
    await until(lambda: len(runs) == 2)


async def test_a_keeper_that_is_cancelled_unasked_fails_the_supervisor(supervisor: Supervisor) -> None:
    """As a cancellation that Python 3.11 leaves behind does."""

    async def task() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.Event().wait()

    supervisor.start_task("task", task)
    with pytest.raises(InternalError, match="the keeper of task ended with CancelledError"):
        async with asyncio.timeout(60):
            await supervisor.run_until(asyncio.Event())


async def test_a_supervisor_that_stops_cancels_its_tasks_and_has_not_failed(supervisor: Supervisor) -> None:
    started = asyncio.Event()

    async def task() -> None:
        started.set()
        await asyncio.Event().wait()

    supervisor.start_task("task", task)
    await started.wait()
    await supervisor.stop()
    await asyncio.sleep(0)
    assert supervisor.failure is None


@pytest.mark.parametrize("fault", ["boom", "panic", "cancelled"])
async def test_an_actor_that_is_started_once_fails_the_supervisor_when_it_has_given_back(
    supervisor: Supervisor, fault: str
) -> None:
    child = supervisor.start_once(Child())
    child.tell(fault)
    with pytest.raises(InternalError, match="child crashed with"):
        async with asyncio.timeout(60):
            await supervisor.run_until(asyncio.Event())
    assert (child.stopped, Child.made) == (True, 1)


async def test_siblings_of_a_crashed_actor_are_left_alone(supervisor: Supervisor) -> None:
    ref, sibling = supervisor.start(Child), supervisor.start(Child)
    ref.tell("boom")
    await until(lambda: Child.made == 3)
    assert await sibling.ask("?", soon()) == 2


async def test_crashes_over_the_intensity_fail_the_supervisor(supervisor: Supervisor) -> None:
    ref = supervisor.start(Child)
    for crash in range(1, 3):
        ref.tell("boom")
        await until(made(crash + 1))
    ref.tell("boom")
    with pytest.raises(InternalError, match="child crashed 3 times in 10 s, last with ValueError"):
        await supervisor.run_until(asyncio.Event())
    assert Child.made == 3


async def test_crashes_that_lie_far_apart_are_forgiven() -> None:
    clock = FakeClock()
    supervisor = Supervisor(max_restarts=2, window_s=10.0, clock=clock)
    ref = supervisor.start(Child)
    for crash in range(1, 6):
        ref.tell("boom")
        await until(made(crash + 1))
        clock.advance(6.0)
    assert supervisor.failure is None
    await supervisor.stop()


async def test_a_factory_that_fails_at_the_restart_fails_the_supervisor(supervisor: Supervisor) -> None:
    made: list[Child] = []

    def factory() -> Child:
        if made:
            raise OSError("no more")
        made.append(Child())
        return made[0]

    supervisor.start(factory).tell("boom")
    with pytest.raises(InternalError, match="OSError"):
        await supervisor.run_until(asyncio.Event())


async def test_a_task_is_restarted_when_it_raises_and_not_when_it_returns(supervisor: Supervisor) -> None:
    runs: list[int] = []

    async def task() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise ValueError("once")

    supervisor.start_task("task", task)
    await until(lambda: len(runs) == 2)
    stop = asyncio.Event()
    stop.set()
    await supervisor.run_until(stop)
    assert runs == [0, 1]


async def test_run_until_returns_at_the_stop_event(supervisor: Supervisor) -> None:
    supervisor.start(Child)
    stop = asyncio.Event()
    stop.set()
    await supervisor.run_until(stop)


async def test_children_stop_in_reverse_order() -> None:
    supervisor = Supervisor()
    order: list[str] = []

    def child(name: str) -> type[Actor]:
        class Named(Actor):
            def __init__(self) -> None:
                super().__init__(name)

            async def handle(self, item: Any) -> None:
                raise AssertionError(item)

            async def on_stop(self) -> None:
                order.append(name)

        return Named

    refs = [supervisor.start(child(name)) for name in ("first", "second")]
    assert len(refs) == 2
    await supervisor.stop()
    assert order == ["second", "first"]


async def test_an_actor_that_hangs_is_cancelled_at_the_deadline_and_still_gives_back() -> None:
    supervisor = Supervisor()
    ref = supervisor.start(Child)
    ref.tell("hang")
    await until(lambda: ref.living.queued == 0)
    await supervisor.stop(Deadline.after(0.05))
    assert ref.living.stopped
