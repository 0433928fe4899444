"""What all sessions of a gateway share."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.canceller import Canceller
from services.gateway.config import GatewayConfig
from services.gateway.tasks import Tasks
from shared.bus import Bus
from shared.bus.fleet import FleetView


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions of this gateway share; `instance` is the gateway's own id."""

    instance: str
    config: GatewayConfig
    bus: Bus
    fleet: FleetView
    canceller: Canceller
    tasks: Tasks
