"""Typed messages over NATS. Only this package imports nats."""

from shared.bus.bus import Bus, Delivery, Receive

__all__ = ["Bus", "Delivery", "Receive"]
