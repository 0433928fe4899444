"""Whether a new request is taken: decided at once, from what the fleet says of itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.gateway.admission.admission_queue import too_long
from services.gateway.admission.degradation import FALL_SHARE, RISE_AT
from services.gateway.admission.ticket import LOWEST_CLASS
from services.gateway.fleet.routing import Candidate
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.degradation import DegradationLevel
from shared.errors import DeadlineExpired, Overloaded
from shared.fairness.share import TenantShare
from shared.messages import WorkerReport

TTFT_DOUBT = 1.25
"""A first token is given up only when it is predicted to be late by this factor: rates are measured, not
known, and a request that is refused for nothing costs more than one that expires."""
TTFT, PRIORITY = "ttft", "priority"
"""Why the gateway sheds, as `penstock_shed_total` counts it."""


def check_wait(wait_s: float, remaining_s: float) -> None:
    """Raise Overloaded when the request's turn at decode cannot come within `remaining_s`."""
    if wait_s > remaining_s:
        raise too_long(wait_s, remaining_s)


def check_class(level: DegradationLevel, priority_class: int, pressure: float, budget_s: float) -> None:
    """Raise Overloaded for a request of low priority while those are shed.

    `pressure` is that of its model, in shares of `budget_s`: where there is none its model is served.
    """
    low = priority_class == LOWEST_CLASS and level >= DegradationLevel.LOW_PRIORITY
    calm = FALL_SHARE * RISE_AT[DegradationLevel.LOW_PRIORITY]
    if low and pressure >= calm:
        raise Overloaded(
            "requests of low priority are shed: retry later or send it with another priority",
            hop="gateway",
            retry_after_ms=max(1, math.ceil((pressure - calm) * budget_s * 1000)),
            reason=PRIORITY,
        )


def queued_s(prefill: Candidate, share: TenantShare | None = None, prompt_tokens: int = 0) -> float:
    """Seconds of work that wait there, of a `share` before a prompt of that tenant. 0 for a worker that has
    not measured its rate: it promises nothing."""
    worker = prefill.heartbeat.worker
    tokens = worker.queued_tokens if share is None else tokens_ahead(worker, share, prompt_tokens)
    return tokens / worker.tokens_per_s if worker.tokens_per_s > 0 else 0.0


def tokens_ahead(worker: WorkerReport, share: TenantShare, prompt_tokens: int) -> float:
    """Return about how many tokens the worker computes before the last of a prompt of this share, but for
    those of the prompt itself: all of its tenant's, and of each other's as many as it has turns meanwhile."""
    if not worker.tenant_queues:
        return worker.queued_tokens
    queues = {queue.share.tenant: queue for queue in worker.tenant_queues}
    own = queues.pop(share.tenant).tokens if share.tenant in queues else 0
    rest = max(0, worker.queued_tokens - own - sum(queue.tokens for queue in queues.values()))
    turns = (own + prompt_tokens) / share.weight
    return own + rest + sum(min(queue.tokens, turns * queue.share.weight) for queue in queues.values())


def compute_s(prefill: Candidate, prompt_tokens: int, block_hashes: Sequence[bytes]) -> float:
    """Seconds that the part of a prompt takes there that the worker does not have yet; 0 as above.

    At the best rate that it had: idle, it measures none, and must not refuse all for what was slow once.
    """
    best = prefill.heartbeat.worker.best_tokens_per_s
    uncached = prompt_tokens - HASH_BLOCK_TOKENS * prefill.overlap(block_hashes)
    return max(0, uncached) / best if best > 0 else 0.0


def predict_ttft_s(
    prefills: Sequence[Candidate],
    prompt_tokens: int,
    block_hashes: Sequence[bytes] = (),
    share: TenantShare | None = None,
) -> float:
    """Seconds to the first token on the worker that has it soonest; an empty fleet is a matter of waiting."""
    return min(
        (queued_s(p, share, prompt_tokens) + compute_s(p, prompt_tokens, block_hashes) for p in prefills),
        default=0.0,
    )


def check_ttft(
    prefills: Sequence[Candidate],
    remaining_s: float,
    prompt_tokens: int = 0,
    block_hashes: Sequence[bytes] = (),
    share: TenantShare | None = None,
) -> None:
    """Raise Overloaded with a retry hint when queues keep the first token from coming within `remaining_s`.

    Raises DeadlineExpired when no queue is to blame: the prompt cannot be computed in that time, ever.
    """
    alone_s = min((compute_s(p, prompt_tokens, block_hashes) for p in prefills), default=0.0)
    if alone_s > TTFT_DOUBT * remaining_s:
        raise DeadlineExpired(
            f"{prompt_tokens} prompt tokens take about {alone_s:.1f} s to compute and {remaining_s:.1f} s "
            "are left: allow a longer ttft_deadline_ms or send a shorter prompt",
            hop="prefill",
        )
    predicted_s = predict_ttft_s(prefills, prompt_tokens, block_hashes, share)
    if predicted_s > TTFT_DOUBT * remaining_s:
        raise Overloaded(
            f"the first token would take about {predicted_s:.1f} s and {remaining_s:.1f} s are left: "
            "retry later or allow a longer ttft_deadline_ms",
            hop="prefill",
            retry_after_ms=max(1, math.ceil((predicted_s - remaining_s) * 1000)),
            reason=TTFT,
        )
