"""Typed messages over NATS. Only this package imports nats."""

from shared.import_without import import_without

import_without(
    "aiohttp", "nats.aio.transport"
)  # it is for WebSockets: a third of what a command's start takes

from shared.bus.bus import Bus, Delivery, Receive  # noqa: E402 - it imports nats

__all__ = ["Bus", "Delivery", "Receive"]
