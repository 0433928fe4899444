"""A route without a token yet: is it still held? Where it is not, the row that ended it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.errors import PenstockError
from shared.messages import HoldReport, Message
from shared.tasks import cancel_until_done, start_task

LAST_ROW_S = 0.25
"""A row that is on its way may take so much longer than the answer of the instance that has let go of its
request."""


async def is_forgotten(ask: Callable[[], Awaitable[Message]], arrived: asyncio.Event) -> bool:
    """Return whether `ask`, a LivenessCheck, hears that nobody works on the request and nothing arrives.

    Returns at once when something arrives. Who does not answer is not taken for one who has forgotten.
    """
    answer = start_task(_held(ask), name="hold-check")
    arrival = start_task(arrived.wait(), name="arrival")
    try:
        await asyncio.wait((answer, arrival), return_when=asyncio.FIRST_COMPLETED)
        if arrival.done() or answer.result():
            return False
        await asyncio.wait((arrival,), timeout=LAST_ROW_S)
        return not arrival.done()
    finally:
        await cancel_until_done(answer, arrival)


async def _held(ask: Callable[[], Awaitable[Message]]) -> bool:
    try:
        answer = await ask()
    except PenstockError:
        return True
    return not isinstance(answer, HoldReport) or answer.held
