"""Asking one instance on behalf of one request; an ask ends early when its instance is lost."""

from __future__ import annotations

from functools import partial

from shared.bus import Bus
from shared.bus.bus import GoOn
from shared.bus.open_asks import OpenAsk
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import InternalError, Unavailable
from shared.messages import Message


class InstanceGone(Unavailable):
    """The fleet view has lost the instance: nothing more need be learned of it."""


class RequestClient:
    """Every question of one request. `total` is its deadline, which travels in the envelopes, as do `trace`
    and `tenant`, the digest."""

    def __init__(
        self,
        bus: Bus,
        gateway: str,
        request_id: str,
        total: Deadline,
        *,
        trace: str = "",
        tenant: str = "",
    ) -> None:
        self._bus = bus
        self._gateway = gateway
        self._request_id = request_id
        self._total = total
        self._trace = trace
        self._tenant = tenant
        self._open: dict[tuple[str, str], OpenAsk] = {}

    async def ask_instance(
        self,
        role: str,
        instance: str,
        message: Message,
        deadline: Deadline,
        *,
        epoch: int = 0,
        work_ends: Deadline | None = None,
        go_on: GoOn | None = None,
    ) -> Message:
        """The answer; raises what the bus raises, and InstanceGone at once when the instance is lost. It is
        waited for and asked again, where `go_on` says so at the deadline.

        `work_ends` is when what is asked for is of no more use to anybody; None: with the request.
        """
        envelope = self._bus.envelope(
            self._request_id,
            epoch,
            work_ends or self._total,
            self._gateway,
            trace=self._trace,
            tenant=self._tenant,
        )
        place = role, instance
        opened = partial(self._open.__setitem__, place)
        try:
            return await self._bus.ask(
                inbox(role, instance), message, envelope, deadline, go_on, opened=opened
            )
        finally:
            self._open.pop(place, None)

    def stop_asking(self, role: str, instance: str) -> None:
        """The instance is gone: whoever waits for it need not."""
        ask = self._open.get((role, instance))
        if ask is not None:
            ask.give_up(InstanceGone(f"{instance} stopped answering: retry", hop=role))


def unexpected_answer(answer: Message, role: str) -> InternalError:
    """The error for an answer of a type that does not fit the question."""
    return InternalError(f"a {role} answered with {type(answer).__name__}: check the versions", hop=role)
