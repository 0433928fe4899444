"""A small real service for tests of the process frame.

ECHO_MODE: "" serves; "impatient" does not wait long for its bus; "slow_load" loads for ever; "missing_model"
fails while loading; "crash" has an actor that crashes on every start; "block" and "wait" have one that never
comes back from a Retrieve, with its event loop and without it; "slow_drain" never finishes its drain.
"""

from __future__ import annotations

import asyncio
import os
import time

from shared.actor import BusActor
from shared.bus import Delivery, connection
from shared.bus.subjects import inbox
from shared.config.fields import ServiceConfig
from shared.errors import NotFound
from shared.messages import Accepted, Retrieve
from shared.process.service import Service, run_service

MODE = os.environ.get("ECHO_MODE", "")


class EchoActor(BusActor):
    async def on_start(self) -> None:
        if MODE == "crash":
            raise ValueError("crash at start")

    async def on_message(self, delivery: Delivery) -> None:
        if MODE == "block":
            time.sleep(3600)  # noqa: ASYNC251 - the fault that is tested
        if MODE == "wait":
            await asyncio.Event().wait()
        if isinstance(delivery.message, Retrieve):
            await self.bus.reply(delivery.envelope, Accepted(delivery.message.k))


async def body(service: Service[ServiceConfig]) -> None:
    if MODE == "slow_load":
        await asyncio.Event().wait()
    if MODE == "missing_model":
        raise NotFound("the model directory /nowhere does not exist; set PENSTOCK_MODEL to one that does")
    if MODE == "slow_drain":
        service.on_drain(asyncio.Event().wait)  # type: ignore[arg-type]  # its True is not looked at
    actor = service.supervisor.start(lambda: EchoActor("echo", service))
    await service.bus.serve(inbox(service.role, service.instance), actor.receive)
    await service.ready()
    await service.run()


if __name__ == "__main__":
    if MODE == "impatient":
        connection.FIRST_CONNECT_S = 0.3
    run_service("retriever", ServiceConfig, body)
