"""Who goes first: priority classes with ageing, earliest deadline within a class, and shares of a chunk."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.sequence import LiveSequence
from shared.errors import InvalidRequest

NORMAL_PRIORITY = 1
LOWEST_PRIORITY = 2  # 0 is the highest
AGING_US = 2_000_000
"""A sequence that waits rises by one class in this time, so that no class starves."""
PATIENCE_US = 30_000_000
"""The deadline, after admission, of a sequence that brings none: it comes before everything later."""

Precedence = tuple[int, int, int]


def check_priority(priority: int) -> None:
    if not 0 <= priority <= LOWEST_PRIORITY:
        raise InvalidRequest(f"priority is {priority}; send 0 (high) to {LOWEST_PRIORITY} (low)")


def class_at(sequence: LiveSequence, now_us: int) -> int:
    """Its priority class after the time it has waited since it last got rows."""
    return max(0, sequence.priority - (now_us - sequence.waiting_since_us) // AGING_US)


def precedence(sequence: LiveSequence, now_us: int) -> Precedence:
    """The least goes first."""
    return class_at(sequence, now_us), sequence.deadline_us, sequence.order


def keeps_blocks(sequence: LiveSequence) -> Precedence:
    """The greatest gives way when blocks run out: lowest class, then latest deadline, then last admitted.

    Each time it did, its class is one better: else those that come in later could take its blocks for ever.
    """
    priority = max(0, sequence.priority - sequence.times_preempted)
    return priority, sequence.deadline_us, sequence.order


def share_chunk(waiting: Sequence[LiveSequence], budget: int, now_us: int) -> list[tuple[LiveSequence, int]]:
    """How many tokens of a prefill chunk each prompt gets; those with none are left out.

    Half of the chunk is for the shortest of the first class that waits, so that a short prompt never stands
    behind a long one; the other half, and what the first leaves, goes by precedence.
    """
    if len(waiting) == 1:
        return [(waiting[0], min(waiting[0].num_uncomputed, budget))] if budget > 0 else []
    in_order = sorted(waiting, key=lambda sequence: precedence(sequence, now_us))
    first_class = class_at(in_order[0], now_us)
    peers = [sequence for sequence in in_order if class_at(sequence, now_us) == first_class]
    given = dict.fromkeys((sequence.key for sequence in in_order), 0)
    budget -= _give(given, sorted(peers, key=lambda sequence: sequence.num_uncomputed), budget // 2)
    _give(given, in_order, budget)
    return [(sequence, given[sequence.key]) for sequence in in_order if given[sequence.key]]


def _give(given: dict[str, int], sequences: Sequence[LiveSequence], budget: int) -> int:
    """Deal out up to `budget` in this order; returns how much went."""
    left = budget
    for sequence in sequences:
        tokens = min(sequence.num_uncomputed - given[sequence.key], left)
        given[sequence.key] += tokens
        left -= tokens
        if left == 0:
            break
    return budget - left
