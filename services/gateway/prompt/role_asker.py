"""Ask one instance of a role after another until one answers: for questions that route nothing there.

A silent one may be dead, may be slow, or may never have got the question. While there is another that one is
asked; while there is none the same one is asked again, which costs it nothing where it works on it already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from services.gateway.fleet.avoided_instances import AvoidedInstances, backoff_s
from services.gateway.fleet.breakers import Breakers, life_of
from services.gateway.fleet.routing import cheapest_instance, leave_out, load_cost
from services.gateway.fleet.waiting import wait_for_instances
from services.gateway.regions.regions import AsPreferred, all_alike
from services.gateway.scope.session_state import is_final
from shared.bus.bus import GoOn
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.errors import NoAnswer, Overloaded, PenstockError, Unavailable

T = TypeVar("T")

AGAIN_S = 0.5
"""The shortest time after which an instance that is alone is asked again."""


@dataclass(frozen=True, slots=True)
class AskTurn:
    """The time of one instance to answer: `until` then, and on where `go_on` says so; never beyond `end`."""

    until: Deadline
    end: Deadline
    go_on: GoOn


@dataclass(frozen=True, slots=True)
class RoleAsker:
    """Asks for one request or call, `request_id` ("" for a call), an instance that failed not again at once.

    `max_asks`: how often a role is asked before the request fails. `turn` spreads equal choices; `prefer`
    says who comes before others.
    """

    breakers: Breakers
    request_id: str
    max_asks: int
    turn: int
    prefer: AsPreferred = all_alike

    async def ask_any(
        self,
        role: str,
        views: Callable[[], Sequence[InstanceView]],
        ask: Callable[[InstanceView, AskTurn], Awaitable[T]],
        *,
        share_s: float,
        end: Deadline,
        wait_s: float,
    ) -> T:
        """Return the first answer of one of `views`; where there is none, one is waited for `wait_s`.

        `ask(view, turn)`: each has `share_s`, and never more than its part of what is left until `end`, so
        that a silent one leaves time for the next. One that nobody is left beside is asked again then, until
        somebody else is there or `end` comes.

        Raises at once what is final, and otherwise, at `end` or after `max_asks`, what the last one said.
        """
        avoided = AvoidedInstances()
        last_error: PenstockError = Unavailable(f"no {role} answered: retry later", hop=role)
        for attempt in range(self.max_asks):
            usable = await wait_for_instances(
                lambda: avoided.not_gone(list(views())), role, Deadline.after(wait_s)
            )
            view = self._choose(usable, avoided, attempt)
            left = min(len(usable), self.max_asks - attempt)
            others = partial(self._others, view, views, avoided, attempt)
            try:
                return await ask(view, _turn(left, others, share_s, end))
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

    def _others(
        self,
        view: InstanceView,
        views: Callable[[], Sequence[InstanceView]],
        avoided: AvoidedInstances,
        attempt: int,
    ) -> bool:
        """Return whether somebody else may be asked instead of `view`."""
        there = avoided.not_gone(views())
        return attempt + 1 < self.max_asks and any(life_of(other) != life_of(view) for other in there)

    def _choose(self, views: Sequence[InstanceView], avoided: AvoidedInstances, attempt: int) -> InstanceView:
        """The least loaded one; those that breakers or this request shun come behind the others."""
        shunned = self.breakers.shunned(views, self.request_id) | avoided.failed(views)
        best = self.prefer(leave_out(views, shunned))
        name = cheapest_instance(best, load_cost, self.turn + attempt)
        return next(view for view in best if view.heartbeat.instance == name)


def _turn(left: int, others: Callable[[], bool], share_s: float, end: Deadline) -> AskTurn:
    """The turn of one of `left` instances that may be asked."""

    def share(parts: int) -> Deadline:
        return end.shrink(min(share_s, end.remaining_s() / parts))

    def again() -> Deadline:
        return min(end, max(share(2), Deadline.after(AGAIN_S)))

    def go_on() -> Deadline | None:
        return None if others() else again()

    return AskTurn(share(left) if left > 1 else again(), end, go_on)
