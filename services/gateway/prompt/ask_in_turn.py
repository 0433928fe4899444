"""Asking one instance of a role after another until one answers: for questions that place nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from services.gateway.fleet.avoided_instances import AvoidedInstances, backoff_s
from services.gateway.fleet.routing import cheapest_instance, leave_out, load_cost
from services.gateway.scope.session_state import is_final
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.errors import NoAnswer, Overloaded, PenstockError, Unavailable

T = TypeVar("T")


async def ask_in_turn(
    role: str,
    usable: Callable[[AvoidedInstances], Awaitable[Sequence[InstanceView]]],
    shunned: Callable[[Sequence[InstanceView]], set[tuple[str, str]]],
    ask: Callable[[InstanceView, int], Awaitable[T]],
    end: Deadline,
    *,
    max_asks: int,
    turn: int,
) -> T:
    """The first answer. `ask` is told how many are left to be asked, its own instance among them: with 1 that
    has all the time there is. Instances that are `shunned` come behind the others, and of equals those that
    `turn` names.

    Raises at once what is final, and otherwise, at `end` or after `max_asks`, what the last instance said.
    """
    avoided = AvoidedInstances()
    last_error: PenstockError = Unavailable(f"no {role} answered: retry later", hop=role)
    for attempt in range(max_asks):
        views = await usable(avoided)
        best = leave_out(views, shunned(views) | avoided.failed(views))
        name = cheapest_instance(best, load_cost, turn + attempt)
        view = next(view for view in best if view.heartbeat.instance == name)
        try:
            return await ask(view, min(len(views), max_asks - attempt))
        except PenstockError as error:
            if is_final(error) or end.expired():
                raise
            last_error = error
        if isinstance(last_error, NoAnswer | Unavailable):
            avoided.add_gone(view)
        elif not isinstance(last_error, Overloaded):
            avoided.add_failed(view)
        await asyncio.sleep(min(backoff_s(attempt), end.remaining_s()))
    raise last_error
