"""Instances that tests play on a real bus: they send heartbeats and answer audits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from shared.bus import Bus, Delivery
from shared.bus.subjects import fleet, inbox
from shared.messages import Accepted, AuditReport, AuditRequest, Drain, Held, Message
from tests.support.heartbeats import make_heartbeat


class PlayedInstance:
    """Sends heartbeats and answers audits with `held`; `answers` False = it only sends heartbeats.

    `after_drain` is the state in which its next life is heard after a drain; "" = it drains for ever.
    """

    def __init__(self, bus: Bus, role: str, *held: Held, answers: bool = True) -> None:
        self.bus = bus
        self.role = role
        self.held = held
        self.answers = answers
        self.asked = 0
        self.after_drain = ""
        self.incarnation = 1
        self.state = "ready"
        self.pid = 7
        self.is_silent = self.is_silent_after_drain = False
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        name = f"{self.role}-0"
        if self.answers:
            await self.bus.serve(inbox(self.role, name), self.receive)
        while True:
            now = time.time_ns() // 1000
            beat = make_heartbeat(
                self.role,
                name,
                incarnation=self.incarnation,
                state=self.state,
                sent_unix_us=now,
                host="host",
                pid=self.pid,
                metrics="h:1",
                model="m",
                capacity=8,
                live=2,
                queued=1,
                queued_tokens=5,
                kv_blocks=100,
                kv_blocks_free=60,
                tokens_per_s=12.5,
            )
            if not self.is_silent:
                await self.bus.publish(fleet(self.role, name), beat)
            await asyncio.sleep(0.1)

    def receive(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Drain):
            self.is_silent = self.is_silent_after_drain
            if self.after_drain:
                self.incarnation, self.state = self.incarnation + 1, self.after_drain
            self._reply(delivery, Accepted())
            return
        assert isinstance(delivery.message, AuditRequest)
        self.asked += 1
        report = AuditReport(self.role, f"{self.role}-0", 1, self.held)
        self._reply(delivery, report)

    def _reply(self, delivery: Delivery, answer: Message) -> None:
        task = asyncio.create_task(self.bus.reply(delivery.envelope, answer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


Play = Callable[..., Awaitable[PlayedInstance]]
