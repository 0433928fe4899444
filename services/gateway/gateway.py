"""What all sessions of a gateway share, and the row of text that each gets of its own."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.config import GatewayConfig
from services.gateway.release import Releaser
from services.gateway.tasks import Tasks
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.messages import Mark
from shared.sampling import TokenLogprob


@dataclass(frozen=True, slots=True)
class Gateway:
    """What all sessions of this gateway share."""

    instance: str
    config: GatewayConfig
    bus: Bus
    fleet: FleetView
    releaser: Releaser
    tasks: Tasks


@dataclass(frozen=True, slots=True)
class TextRow:
    """One row of a Text message."""

    epoch: int
    position: int
    token_ids: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[TokenLogprob, ...]
    marks: tuple[Mark, ...]
