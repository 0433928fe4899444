"""Drafts that have come for the sequences of an engine: before each step, what fits of each is offered.

This runs in the engine's thread, which knows how a round has ended before the event loop does. A draft with
branches stays here over the round that verifies it: the branch for that outcome is there when the next step
begins, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from shared.engine import Engine
from shared.worker.drafts.draft_tree import DraftTree


class Proposal(NamedTuple):
    """A draft for sequence `key`, which had `num_known` tokens by the time that whoever proposes it knew."""

    key: str
    tree: DraftTree
    num_known: int


class RoundEnd(StrEnum):
    """The drafts that there were when a round, a step with a speculator's draft, had ended."""

    HIT = "hit"  # guesses that go on where it ended
    MISSED = "missed"  # branches, for other outcomes
    LATE = "late"  # nothing that was made while it ran


@dataclass(frozen=True, slots=True)
class DraftUse:
    """A draft that came to the engine, or a round that ended.

    The engine had decoded `behind` tokens more than whoever proposed the draft knew of; `late` guesses of one
    without branches were of no use by then. `ended`: the outcome of a round, None where none has ended.
    """

    key: str
    behind: int = 0
    late: int = 0
    ended: RoundEnd | None = None


@dataclass(slots=True)
class _Offer:
    tree: DraftTree
    num_known: int | None  # until it was offered, or not, for the first time
    round_at: int | None = None  # the length of the sequence when the round began that runs


class DraftOffers:
    """The newest draft of each sequence."""

    def __init__(self) -> None:
        self._offers: dict[str, _Offer] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def take(self, proposals: Iterable[Proposal]) -> None:
        """Keep these from now on, instead of those for earlier positions."""
        for key, tree, num_known in proposals:
            before = self._offers.get(key)
            if before is None:
                self._offers[key] = _Offer(tree, num_known)
            elif before.tree.base <= tree.base:
                self._offers[key] = _Offer(tree, num_known, before.round_at)

    def offer(self, engine: Engine) -> list[DraftUse]:
        """Let the next step verify what fits; what will never fit any more is forgotten."""
        return [use for key in list(self._offers) for use in self._offer(engine, key)]

    def _offer(self, engine: Engine, key: str) -> Iterable[DraftUse]:
        offer = self._offers[key]
        tree = offer.tree
        decided = engine.tokens_since(key, tree.base)
        length = tree.base + len(decided)
        rest = tree.rest_after(decided)
        used = bool(rest) and engine.propose(key, length, rest)
        if offer.num_known is not None:
            late = 0 if used or tree.branches else len(tree.token_ids)
            yield DraftUse(key, max(0, length - offer.num_known), late)
            offer.num_known = None
        if offer.round_at is not None and length > offer.round_at:
            in_time = bool(tree.branches) and tree.base == offer.round_at
            yield DraftUse(key, ended=_end_of(used=used, in_time=in_time))
            offer.round_at = None
        if used:
            offer.round_at = length
        else:
            del self._offers[key]


def _end_of(*, used: bool, in_time: bool) -> RoundEnd:
    if used:
        return RoundEnd.HIT
    return RoundEnd.MISSED if in_time else RoundEnd.LATE
