"""Typed messages over NATS. Only this package imports nats."""

from shared.bus.nats_import import import_nats

import_nats()

from shared.bus.bus import Bus, Delivery, Receive  # noqa: E402 - it imports nats

__all__ = ["Bus", "Delivery", "Receive"]
