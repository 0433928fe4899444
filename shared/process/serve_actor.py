"""Serve an instance's messages with an actor that is started anew when it crashes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from shared.actor import ActorRef, BusActor, receiver
from shared.bus import Delivery
from shared.bus.subjects import CANCEL_ALL, inbox
from shared.messages import Heartbeat
from shared.process.service import Service

S = TypeVar("S", bound="ServiceActor")

DRAIN_POLL_S = 0.02


class ServiceActor(BusActor):
    """The actor whose load and work in hand are those of its service."""

    @abstractmethod
    def status(self) -> Heartbeat:
        """Return the heartbeat of the instance with the actor's load."""


async def serve_actor(
    service: Service[Any],
    actor: ActorRef[S],
    receive: Callable[[Delivery], None] | None = None,
) -> None:
    """Hand what is sent to this instance to its actor until the service has drained: nothing is held then.

    `receive`, where given, gets the inbox instead and hands on what is the actor's.
    """

    def status() -> Heartbeat:
        return actor.living.status()

    async def drained() -> None:
        while actor.living.held():  # noqa: ASYNC110 - the state is that of whichever actor lives after restarts
            await asyncio.sleep(DRAIN_POLL_S)

    service.on_drain(drained)
    await service.bus.serve(inbox(service.role, service.instance), receive or receiver(actor))
    await service.bus.serve(CANCEL_ALL, receiver(actor))
    await service.ready(status)
    await service.run()
