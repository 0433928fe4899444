"""Ask the gateways of a fleet for changes of settings, and wait until all of them have followed one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.fleet.fleet_watch import Fleet
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import PenstockError, ProtocolError, Unavailable
from shared.flags.flag_history import FlagHistory
from shared.messages import (
    ChangeFlag,
    FlagChanged,
    FlagLogReport,
    FlagLogRequest,
    FlagTraffic,
    FlagTrafficRequest,
    Message,
)

ASK_TIMEOUT_S = 5.0
FOLLOW_TIMEOUT_S = 10.0
"""The longest time in which gateways hear of a change: they look once a second."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """All that the gateways know together. `reports` is what each said; `silent` has a sentence for each that
    said nothing, or knows of no changes."""

    history: FlagHistory
    reports: dict[str, FlagLogReport]
    silent: tuple[str, ...]


class FlagGateways:
    def __init__(self, bus: Bus, fleet: Fleet) -> None:
        self._bus = bus
        self._fleet = fleet

    @property
    def names(self) -> list[str]:
        beats = (seen.beat for seen in self._fleet.all())
        return sorted(beat.instance for beat in beats if beat.role == "gateway" and beat.state == "ready")

    async def known(self) -> KnownFlags:
        """Raises Unavailable where no gateway answers."""
        answers = await self._ask_all(FlagLogRequest())
        reports = {name: said for name, said in answers.items() if isinstance(said, FlagLogReport)}
        silent = tuple(f"{name}: {said}" for name, said in answers.items() if isinstance(said, PenstockError))
        if not reports:
            why = "; ".join(silent) or "no gateway is heard on this bus; is the stack running?"
            raise Unavailable(why, hop="gateway")
        history = FlagHistory()
        for report in reports.values():
            history = history.united(report.changes, report.forgotten)
        return KnownFlags(history, reports, silent)

    async def traffic(self, since_unix_us: int) -> list[FlagTraffic]:
        """Return the requests that have ended, of every gateway that tells."""
        answers = await self._ask_all(FlagTrafficRequest(since_unix_us))
        return [said for said in answers.values() if isinstance(said, FlagTraffic)]

    async def change(self, known: KnownFlags, asked: ChangeFlag) -> FlagChanged:
        """Let one gateway take the change. Raises why it does not."""
        answer = await self._ask(min(known.reports), asked)
        if not isinstance(answer, FlagChanged):
            raise ProtocolError(f"a gateway answered with {type(answer).__name__}", hop="gateway")
        return answer

    async def late(self, digest: str) -> list[str]:
        """Wait until every gateway knows what has this digest; return those that do not in time."""
        until_s = SYSTEM_CLOCK.monotonic_s() + FOLLOW_TIMEOUT_S
        while late := self._others_than(digest):
            if SYSTEM_CLOCK.monotonic_s() >= until_s:
                return late
            await asyncio.sleep(POLL_S)
        return []

    def _others_than(self, digest: str) -> list[str]:
        told = {seen.beat.instance: seen.beat.gateway.flags for seen in self._fleet.all()}
        return [name for name in self.names if told[name] != digest]

    async def _ask_all(self, question: Message) -> dict[str, Message | PenstockError]:
        names = self.names
        answers: Sequence[Message | PenstockError] = await asyncio.gather(
            *(self._try(name, question) for name in names)
        )
        return dict(zip(names, answers, strict=True))

    async def _try(self, gateway: str, question: Message) -> Message | PenstockError:
        try:
            return await self._ask(gateway, question)
        except PenstockError as error:
            return error

    async def _ask(self, gateway: str, question: Message) -> Message:
        deadline = Deadline.after(ASK_TIMEOUT_S)
        envelope = self._bus.envelope(deadline=deadline)
        return await self._bus.ask(inbox("gateway", gateway), question, envelope, deadline)
