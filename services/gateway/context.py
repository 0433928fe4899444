"""What all sessions of a gateway share."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.admission_queue import AdmissionQueue
from services.gateway.breakers import Breakers
from services.gateway.canceller import Canceller
from services.gateway.config import GatewayConfig
from services.gateway.crash_suspects import CrashSuspects
from services.gateway.placement import free_seats, leave_out, serving
from services.gateway.sent_load import SentLoad
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
    sent_load: SentLoad
    admission_queue: AdmissionQueue
    breakers: Breakers
    crash_suspects: CrashSuspects
    tasks: Tasks

    @classmethod
    def of(
        cls, instance: str, config: GatewayConfig, bus: Bus, fleet: FleetView, tasks: Tasks
    ) -> SessionContext:
        sent_load, breakers = SentLoad(), Breakers(instance, fleet)

        def seats(model: str, blocks: int) -> int | None:
            views = serving(fleet.instances("decode"), "decode", model)
            trusted = leave_out(views, breakers.shunned(views, ""))
            return free_seats([sent_load.with_sent(view) for view in trusted], model, blocks)

        queue = AdmissionQueue(seats, tasks.start)
        canceller = Canceller(bus, instance, config.cancel_ack_s)
        suspects = CrashSuspects()
        return cls(instance, config, bus, fleet, canceller, sent_load, queue, breakers, suspects, tasks)
