"""Whether a new request is taken: decided at once, from what the fleet says of itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.gateway.admission.admission_queue import too_long
from services.gateway.admission.degradation import FALL_SHARE, RISE_AT
from services.gateway.admission.ticket import LOWEST_CLASS
from services.gateway.fleet.routing import Candidate, tokens_before
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


def sheds_class(level: DegradationLevel, priority_class: int) -> bool:
    """Return whether requests of that class are shed while their model is under pressure."""
    return priority_class == LOWEST_CLASS and level >= DegradationLevel.LOW_PRIORITY


def check_pressure(pressure: float, budget_s: float) -> None:
    """Raise Overloaded for a request of a class that is shed, unless its model is under no pressure any more.

    `pressure` is that of its model, in shares of `budget_s`.
    """
    calm = FALL_SHARE * RISE_AT[DegradationLevel.LOW_PRIORITY]
    if pressure >= calm:
        raise Overloaded(
            "requests of low priority are shed: retry later or send it with another priority",
            hop="gateway",
            retry_after_ms=max(1, math.ceil((pressure - calm) * budget_s * 1000)),
            reason=PRIORITY,
        )


def queued_s(
    prefill: Candidate,
    share: TenantShare | None = None,
    prompt_tokens: int = 0,
    left_s: float = math.inf,
) -> float:
    """Seconds of work that wait there before a prompt that is due in `left_s`, of a `share` before one of
    that tenant. 0 for a worker that has not measured its rate: it promises nothing."""
    worker = prefill.heartbeat.worker
    ahead = worker.queued_tokens if share is None else tokens_ahead(worker, share, prompt_tokens)
    tokens = min(ahead, tokens_before(worker, prompt_tokens, left_s))
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
    local_s: float = math.inf,
    left_s: float = math.inf,
) -> float:
    """Seconds to the first token, which is due in `left_s`, on the worker that has it soonest: a decode
    worker in `local_s`. A fleet without prefill workers is a matter of waiting."""

    def first_token_s(prefill: Candidate) -> float:
        waits_s = queued_s(prefill, share, prompt_tokens, left_s)
        return waits_s + compute_s(prefill, prompt_tokens, block_hashes)

    return min(min(map(first_token_s, prefills), default=0.0), local_s)


def check_ttft(
    prefills: Sequence[Candidate],
    remaining_s: float,
    prompt_tokens: int = 0,
    block_hashes: Sequence[bytes] = (),
    share: TenantShare | None = None,
    local_s: float = math.inf,
    *,
    in_turn: bool = True,
) -> None:
    """Raise Overloaded with a retry hint when queues keep the first token from coming within `remaining_s`,
    at decode workers, which would have it in `local_s`, too. `in_turn`: it goes before those that are due
    later.

    Raises DeadlineExpired when no queue is to blame: the prompt cannot be computed in that time, ever.
    """
    alone_s = min((compute_s(p, prompt_tokens, block_hashes) for p in prefills), default=0.0)
    if alone_s > TTFT_DOUBT * remaining_s:
        raise DeadlineExpired(
            f"{prompt_tokens} prompt tokens take about {alone_s:.1f} s to compute and {remaining_s:.1f} s "
            "are left: allow a longer ttft_deadline_ms or send a shorter prompt",
            hop="prefill",
        )
    left_s = remaining_s if in_turn else math.inf
    predicted_s = predict_ttft_s(prefills, prompt_tokens, block_hashes, share, local_s, left_s)
    if predicted_s > TTFT_DOUBT * remaining_s:
        raise Overloaded(
            f"the first token would take about {predicted_s:.1f} s and {remaining_s:.1f} s are left: "
            "retry later or allow a longer ttft_deadline_ms",
            hop="prefill",
            retry_after_ms=max(1, math.ceil((predicted_s - remaining_s) * 1000)),
            reason=TTFT,
        )
