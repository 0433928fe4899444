"""Choose who goes first: the tenant with the least service, of its own by priority class with ageing, in a
class by deadline; prompts one by one."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.cost_model import CostModel
from shared.engine.sequence import LiveSequence
from shared.errors import InvalidRequest
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.shortest_turns import ShortestTurns

NORMAL_PRIORITY = 1
LOWEST_PRIORITY = 2  # 0 is the highest
AGING_US = 2_000_000
"""A sequence that waits rises by one class in this time, so that no class starves."""
PATIENCE_US = 30_000_000
"""The deadline, after admission, of a sequence that brings none: it comes before everything later."""

Precedence = tuple[float, float, int, float, int]


def check_priority(priority: int) -> None:
    if not 0 <= priority <= LOWEST_PRIORITY:
        raise InvalidRequest(f"priority is {priority}; send 0 (high) to {LOWEST_PRIORITY} (low)")


def class_at(sequence: LiveSequence, now_us: int) -> int:
    """Its priority class after the time it has waited since it last got rows."""
    return max(0, sequence.priority - (now_us - sequence.waiting_since_us) // AGING_US)


def precedence(sequence: LiveSequence, now_us: int, counters: ServiceCounters) -> Precedence:
    """The least goes first, among equals whose next token is due first."""
    standing = counters.standing(sequence.share.tenant)
    due_us = min(sequence.due_us, sequence.deadline_us)
    return *standing, class_at(sequence, now_us), due_us, sequence.order


def keeps_blocks(sequence: LiveSequence, counters: ServiceCounters) -> Precedence:
    """The greatest gives way when blocks run out: the tenant that has had most service, of its sequences the
    lowest class, then latest deadline, then last admitted.

    Each time it did, its class is one better: else those that come in later could take its blocks for ever.
    """
    priority = max(0, sequence.priority - sequence.times_preempted)
    standing = counters.standing(sequence.share.tenant)
    return *standing, priority, sequence.deadline_us, sequence.order


class PromptOrder:
    """The order among prompts: one after another, and the next one beside it where that costs little.

    The first by precedence and the shortest of its tenant and class take turns (`ShortestTurns`).
    """

    def __init__(self, cost: CostModel, counters: ServiceCounters) -> None:
        self._cost = cost
        self._counters = counters
        self._turns: ShortestTurns[LiveSequence] = ShortestTurns(lambda sequence: sequence.num_uncomputed)

    def share_chunk(
        self, waiting: Sequence[LiveSequence], budget: int, now_us: int
    ) -> list[tuple[LiveSequence, int]]:
        """Return how many tokens of a prefill chunk each prompt gets; those with none are left out.

        A block that several prompts come to next is computed by the first of them that has its turn; the
        others go on behind it, or one of them instead of it when it is gone.
        """
        in_order = sorted(waiting, key=lambda sequence: precedence(sequence, now_us, self._counters))
        first = in_order[0]
        first_class = class_at(first, now_us)
        line = [
            sequence
            for sequence in in_order
            if sequence.share.tenant == first.share.tenant and class_at(sequence, now_us) == first_class
        ]
        chosen = self._turns.next(line)
        if chosen is not first:
            in_order.remove(chosen)
            in_order.insert(0, chosen)
        shares = self._deal(in_order, budget)
        self._turns.count(line, shares)
        return shares

    def _deal(self, in_order: Sequence[LiveSequence], budget: int) -> list[tuple[LiveSequence, int]]:
        """Deal tokens in this order, as far as it pays to have the next prompt in this step."""
        shares: list[tuple[LiveSequence, int]] = []
        begun: set[bytes] = set()  # blocks that somebody computes
        ended = 0
        for sequence in in_order:
            name = sequence.next_block_name
            if name in begun:
                continue
            tokens = min(sequence.num_uncomputed, budget)
            ends = tokens == sequence.num_uncomputed
            if not tokens or not self._pays(sequence, ends=ends, ended=ended, behind=len(in_order) - ended):
                break
            if name is not None:
                begun.add(name)
            shares.append((sequence, tokens))
            ended += ends
            budget -= tokens
        return shares

    def _pays(self, sequence: LiveSequence, *, ends: bool, ended: int, behind: int) -> bool:
        """Return whether another prompt pays: those who end in this step would wait for it; if it ends too,
        those behind wait for one
        step less.

        While costs are unknown the chunk is filled.
        """
        if not ended or not self._cost.ready:
            return True
        step_us, *_ = self._cost.coefficients()
        waited_us = ended * self._cost.span_us(sequence.num_computed, sequence.num_uncomputed)
        return ends and waited_us <= behind * step_us
