"""The time a request has: to its first token and in all, from its arrival; and from one token to the next."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.config import GatewayConfig
from services.gateway.request.request import Request
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline

GRPC_MARGIN_S = 0.1
"""gRPC ends a call at its deadline by itself; ending it this much earlier lets the terminal event through."""
GRPC_MARGIN_SHARE = 0.25
"""The share of a deadline that is the margin where it is too short for all of that margin."""
END_S = 0.001
"""The time that the end of a request takes a gateway, at most: of several with one deadline, those that come
later end so much earlier each, so that they do not all end at once and the last of them too late."""
MAX_GRPC_MARGIN_S = 0.5
"""The most of a deadline that is the margin, however many requests are live."""
INTER_TOKEN_MARGIN_S = 0.025
"""The gateway ends a request whose tokens do not come so much later than a worker does."""


def answerable_s(call_remaining_s: float, live: int = 0) -> float:
    """Return how much of a gRPC deadline there is for the work: the rest is for its answer, and for those of
    the requests that are live already and may end at the same time."""
    margin_s = min(GRPC_MARGIN_S + live * END_S, MAX_GRPC_MARGIN_S)
    return call_remaining_s - min(margin_s, GRPC_MARGIN_SHARE * call_remaining_s)


@dataclass(frozen=True, slots=True)
class Budget:
    """`first_token` is never later than `total`; `first_token_s` is what was left until
    then when it was admitted, of which hops get shares.

    `arrived_s` is when its call came, on the monotonic clock: it counts from then.
    `inter_token_s` is how long tokens may be awaited after the last ones, None: as long as `total` lasts.
    `thinking` is when what the model thinks is closed, None: when it likes.
    """

    first_token: Deadline
    total: Deadline
    first_token_s: float
    inter_token_s: float | None = None
    arrived_s: float | None = None
    thinking: Deadline | None = None

    def next_token(self, last_token_s: float) -> Deadline:
        """Return the deadline of the tokens after those that came at `last_token_s`.

        The worker that makes them keeps this one too and knows better what they waited for, so it gets a
        moment to say so first.
        """
        if self.inter_token_s is None:
            return self.total
        return min(self.total, Deadline(last_token_s + self.inter_token_s + INTER_TOKEN_MARGIN_S))

    @classmethod
    def of(
        cls,
        request: Request,
        config: GatewayConfig,
        call_remaining_s: float | None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        arrived_s: float | None = None,
        live: int = 0,
        ends: Deadline | None = None,
    ) -> Budget:
        """The earliest of what the request, the call (None: no gRPC deadline) and the defaults say.

        What a gRPC call has left has been counted from its arrival by gRPC; all else counts from `arrived_s`,
        None: from now. `live` requests are there already. `ends`: when a stream that it goes on with ends.
        """
        now_s = clock.monotonic_s()
        began_s = now_s if arrived_s is None else arrived_s
        ends_s = []
        if request.deadline_ms is not None:
            ends_s.append(began_s + request.deadline_ms / 1000)
        if call_remaining_s is not None:
            ends_s.append(now_s + answerable_s(call_remaining_s, live))
        if ends is not None:
            ends_s.append(ends.at_s)
        total_end_s = min(ends_s, default=began_s + config.default_deadline_s)
        first_token_s = config.default_ttft_deadline_s
        if request.ttft_deadline_ms is not None:
            first_token_s = request.ttft_deadline_ms / 1000
        first_token_end_s = min(began_s + first_token_s, total_end_s)
        inter_token_ms = request.inter_token_deadline_ms
        return cls(
            Deadline(first_token_end_s),
            Deadline(total_end_s),
            max(0.0, first_token_end_s - now_s),
            None if inter_token_ms is None else inter_token_ms / 1000,
            began_s,
            _thinking_end(request, began_s, clock),
        )


def _thinking_end(request: Request, began_s: float, clock: Clock) -> Deadline | None:
    """Return when the thinking is closed: of a stream that it goes on with, as that began."""
    if request.resumed is not None and (until_us := request.resumed.thinking.until_unix_us):
        return Deadline.after((until_us - clock.unix_us()) / 1e6, clock)
    thinking_ms = request.thinking_use.deadline_ms
    return None if thinking_ms is None else Deadline(began_s + thinking_ms / 1000)
