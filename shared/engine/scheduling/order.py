"""Who goes first: priority classes with ageing, earliest deadline within a class, and shares of a chunk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from shared.engine.sequence import LiveSequence
from shared.errors import InvalidRequest
from shared.kv_hash import HASH_BLOCK_TOKENS

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

    A block that several prompts come to next is computed by the first of them that has its turn. It gets the
    shares of the others as well, as far as they have its tokens: so they lose no time by waiting for it, and
    when it is gone the next of them has the turn.
    """
    if len(waiting) == 1:
        return [(waiting[0], min(waiting[0].num_uncomputed, budget))] if budget > 0 else []
    in_order = sorted(waiting, key=lambda sequence: precedence(sequence, now_us))
    first_class = class_at(in_order[0], now_us)
    peers = [sequence for sequence in in_order if class_at(sequence, now_us) == first_class]
    given = dict.fromkeys((sequence.key for sequence in in_order), 0)
    leaders: dict[bytes, LiveSequence] = {}
    shortest_first = sorted(peers, key=lambda sequence: sequence.num_uncomputed)
    budget -= _give(given, leaders, shortest_first, budget // 2)
    _give(given, leaders, in_order, budget)
    return [(sequence, given[sequence.key]) for sequence in in_order if given[sequence.key]]


def _give(
    given: dict[str, int], leaders: dict[bytes, LiveSequence], sequences: Sequence[LiveSequence], budget: int
) -> int:
    """Deal out up to `budget` in this order; returns how much went. `leaders`: who computes which block."""
    left = budget
    for sequence in sequences:
        if left <= 0:
            break
        name = sequence.next_block_name
        leader = sequence if name is None else leaders.setdefault(name, sequence)
        wanted = sequence.num_uncomputed if leader is sequence else _common_tokens(leader, sequence)
        tokens = max(0, min(wanted - given[leader.key], left))
        given[leader.key] += tokens
        left -= tokens
    return budget - left


def _common_tokens(leader: LiveSequence, follower: LiveSequence) -> int:
    """How many tokens the leader computes for `follower` too; both come to the same block next."""
    ours, theirs = leader.reusable_names, follower.reusable_names
    next_block = leader.num_computed // HASH_BLOCK_TOKENS
    blocks = range(next_block, min(len(ours), len(theirs)))
    # A name covers all that is before its block: once names differ, they differ to the end.
    common = bisect_left(blocks, True, key=lambda index: ours[index] != theirs[index])
    return (next_block + common) * HASH_BLOCK_TOKENS - leader.num_computed
