"""Calls into nats-py are bounded even where it swallows a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.connection import _sentence, bounded


async def test_a_call_that_swallows_cancellations_still_ends() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        raise OSError("given up at last")

    with pytest.raises(TimeoutError):
        await bounded(stubborn(), 0.01)
    assert swallowed == 3


async def test_the_error_of_a_call_in_time_is_its_own() -> None:
    async def broken() -> None:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        await bounded(broken(), 5.0)


@pytest.mark.parametrize(
    ("error", "told"), [(OSError("refused"), "refused"), (TimeoutError(), "TimeoutError")]
)
def test_an_error_without_a_text_is_told_by_its_name(error: Exception, told: str) -> None:
    assert _sentence(error) == told
