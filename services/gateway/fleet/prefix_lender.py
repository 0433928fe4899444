"""Find the prefill worker that has more of a prompt cached than the one that computes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.fleet.routing import Candidate
from shared.messages import NO_LENDER, PrefixLender

LEAST_MORE_BLOCKS = 4
"""The fewest blocks more for which a worker is named to another one."""


def prefix_lender(
    prefills: Sequence[Candidate], chosen: str, layout: str, block_hashes: Sequence[bytes]
) -> PrefixLender:
    """Return who has most of the blocks, and among equals least in its queue, of those with the KV `layout`;
    NO_LENDER where the `chosen` worker has about as many."""
    known = {
        view.heartbeat.instance: view.overlap(block_hashes)
        for view in prefills
        if view.heartbeat.worker.layout == layout
    }
    own = known.pop(chosen, 0)
    lenders = [view for view in prefills if view.heartbeat.instance in known]
    if not lenders:
        return NO_LENDER
    best = max(
        lenders, key=lambda view: (known[view.heartbeat.instance], -view.heartbeat.worker.queued_tokens)
    )
    beat, blocks = best.heartbeat, known[best.heartbeat.instance]
    if blocks < own + LEAST_MORE_BLOCKS:
        return NO_LENDER
    return PrefixLender(
        beat.instance, beat.incarnation, blocks, beat.worker.queued_tokens, beat.worker.tokens_per_s
    )
