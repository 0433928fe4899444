"""Calls into nats-py are bounded even where it swallows a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.connection import _sentence, bounded, without_password


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
    ("url", "shown"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://user:secret@host:4222", "nats://host:4222"),
        ("nats://token@host", "nats://host"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("error", "told"), [(OSError("refused"), "refused"), (TimeoutError(), "TimeoutError")]
)
def test_an_error_without_a_text_is_told_by_its_name(error: Exception, told: str) -> None:
    assert _sentence(error) == told
