"""A small real service for tests of the process frame.

ECHO_MODE: "" serves; "impatient" does not wait long for its bus, nor
bears a refusal long; "slow_load" loads for ever; "missing_model"
fails while loading; "crash" has an actor that crashes on every start; "block" and "wait" have one that never
comes back from a Retrieve, with its event loop and without it; "slow_drain" never finishes its drain; "clock"
sets its time of day on by as many seconds as a Retrieve says.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from shared.bus import Delivery, connection, refusals
from shared.config.fields import ServiceConfig
from shared.errors import NotFound
from shared.messages import Accepted, Heartbeat, Retrieve
from shared.process.serve_actor import ServiceActor, serve_actor
from shared.process.service import Service, run_service

MODE = os.environ.get("ECHO_MODE", "")


class EchoActor(ServiceActor):
    def __init__(self, service: Service[ServiceConfig]) -> None:
        super().__init__("echo", service)
        self._service = service

    def status(self) -> Heartbeat:
        return self._service.heartbeat()

    async def on_start(self) -> None:
        if MODE == "crash":
            raise ValueError("crash at start")

    async def on_message(self, delivery: Delivery) -> None:
        if MODE == "block":
            time.sleep(3600)  # noqa: ASYNC251 - the fault that is tested
        if MODE == "wait":
            await asyncio.Event().wait()
        deadline = self.bus.deadline_of(delivery.envelope)
        if deadline is not None:
            deadline.check("retriever")
        if MODE == "clock" and isinstance(delivery.message, Retrieve):
            set_on(int(delivery.message.query))
        if isinstance(delivery.message, Retrieve):
            await self.bus.reply(delivery.envelope, Accepted(delivery.message.k))


def set_on(seconds: int, clock: Callable[[], int] = time.time_ns) -> None:
    time.time_ns = lambda: clock() + seconds * 1_000_000_000


async def body(service: Service[ServiceConfig]) -> None:
    if MODE == "slow_load":
        await asyncio.Event().wait()
    if MODE == "missing_model":
        raise NotFound("the model directory /nowhere does not exist; set PENSTOCK_MODEL to one that does")
    if MODE == "slow_drain":
        service.on_drain(asyncio.Event().wait)  # type: ignore[arg-type]  # its True is not looked at
    actor = service.supervisor.start(lambda: EchoActor(service))
    await serve_actor(service, actor)


if __name__ == "__main__":
    if MODE == "impatient":
        connection.FIRST_CONNECT_S = 0.3
        refusals.REFUSED_FOR_S = 0.1
    run_service("retriever", ServiceConfig, body)
