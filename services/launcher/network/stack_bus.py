"""The connection of a stack to its bus: it hears its own services there, and asks them to drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.launcher.network.own_beats import OwnBeats
from services.launcher.processes.instance import InstanceSpec
from services.launcher.watch.troubles import Troubles
from shared.bus import Bus
from shared.bus.credentials import load_credentials
from shared.bus.subjects import FLEET_ALL, inbox
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import MAX_DRAIN_S, Drain

DRAIN_ASK_S = 2.0
"""The longest wait for the answer of an instance that is to drain."""
CLOSE_TIMEOUT_S = 2.0


class StackBus:
    """`url` and `credentials` may be set until `open`: a stack that has its own nats-server chooses them."""

    def __init__(
        self, url: str, credentials: str, beats: OwnBeats, troubles: Troubles, say: Callable[[str], None]
    ) -> None:
        self.url = url
        self.credentials = credentials
        self._beats = beats
        self._troubles = troubles
        self._say = say
        self._bus: Bus | None = None

    async def open(self) -> None:
        """Connect, and hear heartbeats. Raises what `Bus.connect` does."""
        credentials = load_credentials(self.credentials)
        self._bus = await Bus.connect(self.url, name="penstock-launcher", credentials=credentials)
        await self._bus.serve(FLEET_ALL, self._beats.on_beat)

    async def keep(self) -> None:
        """Connect anew where the connection is gone for good; services that lost theirs end and are started
        again."""
        lost = self._bus
        assert lost is not None
        if not lost.lost.is_set():
            return
        try:
            await self.open()
        except PenstockError as error:
            self._troubles.tell("bus", f"{lost.why_lost}; and again: {error}")
        else:
            await lost.close()
            self._troubles.over("bus")
            self._say("the launcher hears the services again")

    async def ask_to_drain(self, spec: InstanceSpec, patience_s: float) -> bool:
        """Give an instance so much time to finish what it has; False where it does not answer."""
        bus, deadline = self._bus, Deadline.after(DRAIN_ASK_S)
        assert bus is not None
        envelope, drain = bus.envelope(deadline=deadline), Drain(round(min(patience_s, MAX_DRAIN_S)))
        try:
            await bus.ask(inbox(spec.role, spec.instance), drain, envelope, deadline)
        except PenstockError:
            return False
        return True

    async def close(self) -> None:
        if self._bus is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._bus.close()
        except TimeoutError:
            self._say("the connection to NATS did not close in time")
