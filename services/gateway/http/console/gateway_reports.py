"""Ask every gateway what a console shows of it: whoever looks is with one of them, by chance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.gateway.context import SessionContext
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import ConsoleReport, ConsoleRequest

ASK_S = 0.5
"""The longest wait for the others: a page looks once a second."""
MAX_ASKED_GATEWAYS = 32
"""The most other gateways that are asked; those beyond are silent."""


@dataclass(frozen=True, slots=True)
class GatewayReports:
    """The reports of those that have answered, our own first, and the names of the `silent` others."""

    reports: tuple[ConsoleReport, ...]
    silent: tuple[str, ...]


async def gateway_reports(context: SessionContext, own: Callable[[], ConsoleReport]) -> GatewayReports:
    """Ask the others, all at once."""
    views = context.fleet.instances("gateway")
    names = sorted(view.heartbeat.instance for view in views if view.heartbeat.instance != context.instance)
    asked, beyond = names[:MAX_ASKED_GATEWAYS], names[MAX_ASKED_GATEWAYS:]
    deadline = Deadline.after(ASK_S)
    answers = await asyncio.gather(*(_ask(context, name, deadline) for name in asked))
    told = [answer for answer in answers if answer is not None]
    silent = [name for name, answer in zip(asked, answers, strict=True) if answer is None]
    return GatewayReports((own(), *told), (*silent, *beyond))


async def _ask(context: SessionContext, name: str, deadline: Deadline) -> ConsoleReport | None:
    """Return its report; None where it does not answer in time, or with something else, as one that is older
    than this message."""
    envelope = context.bus.envelope(deadline=deadline)
    try:
        answer = await context.bus.ask(inbox("gateway", name), ConsoleRequest(), envelope, deadline)
    except PenstockError:
        return None
    return answer if isinstance(answer, ConsoleReport) else None
