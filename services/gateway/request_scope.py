"""Hold what the parts of one running request share: made once, by its session, and handed to each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from services.gateway.admission.request_meter import RequestMeter
from services.gateway.context import SessionContext
from services.gateway.fleet.crash_record import CrashRecord
from services.gateway.fleet.request_client import RequestClient
from services.gateway.keys.allowance import Allowance
from services.gateway.request.request import Request
from services.gateway.scope.budget import Budget
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.response_buffer import ResponseBuffer
from services.gateway.scope.session_state import SessionState


@dataclass(frozen=True, slots=True)
class RequestScope:
    """One request while it runs. `request` is what came in; what its model makes of it is handed on by the
    stages. `rotation` spreads equal choices of instances over the requests of a gateway."""

    context: SessionContext
    request_id: str
    request: Request
    budget: Budget
    allowance: Allowance
    rotation: int
    state: SessionState
    response: ResponseBuffer
    timeline: RequestTimeline
    request_client: RequestClient
    crash_record: CrashRecord
    meter: RequestMeter

    @classmethod
    def open(
        cls,
        context: SessionContext,
        request_id: str,
        request: Request,
        budget: Budget,
        allowance: Allowance,
        rotation: int,
    ) -> Self:
        """A scope in which nothing has happened yet."""
        return cls(
            context=context,
            request_id=request_id,
            request=request,
            budget=budget,
            allowance=allowance,
            rotation=rotation,
            state=SessionState(request.sampling.max_tokens),
            response=ResponseBuffer(context.config.max_buffered_tokens),
            timeline=RequestTimeline(request.client_sent_unix_us, began_s=budget.arrived_s),
            request_client=RequestClient(context.bus, context.instance, request_id, budget.total),
            crash_record=context.poison_requests.open_record(request_id),
            meter=context.admission_queue.meter(request.share),
        )
