"""The time a request has: the first-token deadline and the total one, absolute from its arrival."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.config import GatewayConfig
from services.gateway.request import Request
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline

GRPC_MARGIN_S = 0.1
"""gRPC ends a call at its deadline by itself; ending it this much earlier lets the terminal event through."""
GRPC_MARGIN_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Budget:
    """`first_token` is never later than `total`; `first_token_s` is its length, of which hops get shares."""

    first_token: Deadline
    total: Deadline
    first_token_s: float

    @classmethod
    def of(
        cls,
        request: Request,
        config: GatewayConfig,
        call_remaining_s: float | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Budget:
        """The earliest of what the request, the call (None: no gRPC deadline) and the defaults say."""
        ends_s = []
        if request.deadline_ms is not None:
            ends_s.append(request.deadline_ms / 1000)
        if call_remaining_s is not None:
            ends_s.append(call_remaining_s - min(GRPC_MARGIN_S, GRPC_MARGIN_SHARE * call_remaining_s))
        total_s = min(ends_s, default=config.default_deadline_s)
        first_token_s = config.default_ttft_deadline_s
        if request.ttft_deadline_ms is not None:
            first_token_s = request.ttft_deadline_ms / 1000
        first_token_s = min(first_token_s, total_s)
        return cls(Deadline.after(first_token_s, clock), Deadline.after(total_s, clock), first_token_s)
