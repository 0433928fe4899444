"""Tasks that are cancelled end, however they take it."""

from __future__ import annotations

import asyncio

from shared.tasks import cancel_until_done, start_task


async def test_a_task_that_swallows_a_cancel_is_cancelled_again() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_until_done(task)
    assert task.cancelled()
    assert swallowed == 3


async def test_all_are_ended_and_their_errors_are_left_to_the_caller() -> None:
    async def fails() -> None:
        raise ValueError("a bug")

    failed, waits = asyncio.create_task(fails()), asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    await cancel_until_done(failed, waits)
    assert isinstance(failed.exception(), ValueError)
    assert waits.cancelled()


async def test_a_task_has_the_name_that_it_is_started_with() -> None:
    task = start_task(asyncio.sleep(0, "done"), name="work")
    assert task.get_name() == "work"
    assert await task == "done"
