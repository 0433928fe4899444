"""Keep the sequences, and choose which rows go into the next step."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from shared.engine.cost_model import CostModel, Features, span_features
from shared.engine.memory.allocation import RETRY_AFTER_MS
from shared.engine.memory.block_manager import BlockManager
from shared.engine.scheduling.draft_prices import DraftPrices
from shared.engine.scheduling.head_drafts import HeadDrafts
from shared.engine.scheduling.ngram_drafts import NgramDrafts
from shared.engine.scheduling.offered_drafts import OfferedDrafts
from shared.engine.scheduling.order import (
    NORMAL_PRIORITY,
    PATIENCE_US,
    PromptOrder,
    class_at,
    keeps_blocks,
    precedence,
)
from shared.engine.scheduling.own_drafts import NO_DRAFTS, Drafts, OwnDrafts
from shared.engine.scheduling.row_costs import RowCosts
from shared.engine.scheduling.row_turns import RowTurns
from shared.engine.scheduling.step_limits import StepLimits
from shared.engine.sequence import LiveSequence, SequenceStatus
from shared.engine.step_pacer import OwnRequests
from shared.errors import DeadlineExpired, InvalidRequest, Overloaded
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.fairness.token_cost import prompt_cost, step_cost
from shared.records import maker_of
from shared.seams.clock import SYSTEM_CLOCK

PREDICTION_DOUBT = 2.0
"""A prompt is refused for want of time only when it is predicted to take so many times what is left."""
MAX_SCORED_TOKENS = 128
"""The most tokens of prompts that are scored in one step: each is a row of logits, half a megabyte for a
large vocabulary."""


class Work(NamedTuple):
    """Rows of one sequence for one step: tokens [start, start + num_tokens), then `drafts` to verify.

    The logits after each of them are what the next token is drawn or scored by.
    """

    sequence: LiveSequence
    start: int
    num_tokens: int
    drafts: tuple[int, ...]
    is_prefill: bool
    num_draws: int
    """Rows to sample: none until the chunk reaches the last known token."""
    match_tokens: int = 0
    """The tokens behind which drafts were found that were looked up in the sequence's own text."""
    confidences: tuple[float, ...] = ()
    """The confidence of each draft, where a draft head has made them."""

    @classmethod
    def of(
        cls,
        sequence: LiveSequence,
        num_tokens: int,
        drafts: tuple[int, ...],
        *,
        is_prefill: bool,
        match_tokens: int = 0,
        confidences: tuple[float, ...] = (),
    ) -> Work:
        """Make the rows of the tokens that come next."""
        start = sequence.num_computed
        num_draws = 1 + len(drafts) if start + num_tokens == len(sequence.tokens) else 0
        return cls(sequence, start, num_tokens, drafts, is_prefill, num_draws, match_tokens, confidences)

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def scored(self) -> range:
        """The positions of prompt tokens whose log-probabilities are wanted of this step."""
        sequence = self.sequence
        first = max(sequence.num_scored, self.start + 1)
        return range(first, max(first, min(self.end + 1, sequence.prompt_len)))

    @property
    def num_logits(self) -> int:
        """Return how many of its last rows have logits that are wanted."""
        scored = self.is_prefill and self.scored
        return self.end + len(self.drafts) - (scored.start - 1) if scored else self.num_draws

    @property
    def token_ids(self) -> list[int]:
        known = self.sequence.tokens[self.start : self.start + self.num_tokens]
        return [*known, *self.drafts] if self.drafts else known


_work_of = maker_of(Work)
_num_draws, _draft_ids = attrgetter("num_draws"), attrgetter("token_ids")


class Reuse(NamedTuple):
    """KV of a prompt's tokens [start, end) that another sequence has computed since it came in."""

    sequence: LiveSequence
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of the next step: what it computes, what it need not, who lost its blocks for that, and how
    many that decode rest."""

    work: tuple[Work, ...]
    reused: tuple[Reuse, ...]
    preempted_keys: tuple[str, ...]
    features: Features
    num_plain: int = 0
    """The first rows that are plain: each of a sequence that decodes, with one draw and nothing to verify."""
    num_resting: int = 0
    draft_prices: DraftPrices | None = None
    """The price of verifying a token in it; None where nobody decodes, or nothing is known yet."""
    drafting_us: int = 0
    """The time that a draft head took to draft for it."""


def monotonic_us() -> int:
    return SYSTEM_CLOCK.monotonic_ns() // 1000


class Scheduler:
    """Decode rows first, then drafts, then prefill chunks by precedence; see `order`.

    `max_step_us`, `max_step_ratio` and `itl_target_us` as in `StepLimits`.
    `ngram_tokens`: the most that are drafted from a sequence's own text, `ngram_batch_tokens`: in a step,
    `ngram_scopes`: of how many scopes the latest answers are such text, too.
    `guest_sequences` may be held beyond `max_sequences`: no step decodes more than these, so that some rest.
    `heads`: the drafts of a draft head, where there is one.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        cost: CostModel,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        guest_sequences: int = 0,
        max_step_us: float = 0.0,
        max_step_ratio: float = 0.0,
        itl_target_us: float = 0.0,
        ngram_tokens: int = 0,
        ngram_batch_tokens: int = 0,
        ngram_scopes: int = 0,
        heads: HeadDrafts | None = None,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self.sequences: dict[str, LiveSequence] = {}
        self.counters = ServiceCounters()
        self.lookups = NgramDrafts(ngram_tokens, ngram_batch_tokens, ngram_scopes)
        self.heads = heads
        self.offered = OfferedDrafts()
        self.row_costs = RowCosts()
        self._own_drafts = OwnDrafts(self.lookups, heads)
        self._block_manager = block_manager
        self._cost = cost
        self._prompt_order = PromptOrder(cost, self.counters)
        self._max_batch_tokens = max_batch_tokens
        self._most_held = max_sequences + guest_sequences
        self._row_turns = RowTurns(max_sequences)
        self._step_limits = StepLimits(
            cost, max_step_us=max_step_us, max_step_ratio=max_step_ratio, itl_target_us=itl_target_us
        )
        self._now_us = now_us

    # --- who is here ---

    def check_room(self, key: str, priority: int = NORMAL_PRIORITY, share: TenantShare = OPEN_SHARE) -> None:
        """Raise unless a new sequence `key` may come in now: nobody who goes before it waits for blocks."""
        if key in self.sequences:
            raise InvalidRequest(f"sequence {key!r} is already held; release it before admitting it again")
        if len(self.sequences) >= self._most_held:
            raise Overloaded(
                f"all {self._most_held} sequences are taken; try again later or raise max_sequences",
                retry_after_ms=RETRY_AFTER_MS,
            )
        if any(self._is_before(sequence, priority, share) for sequence in self._preempted()):
            raise Overloaded(
                "KV blocks ran out and a preempted sequence waits for them; try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def check_time(self, sequence: LiveSequence, deadline_us: int | None) -> None:
        """Raise DeadlineExpired when its prompt cannot be computed by then, even with nothing beside it."""
        if deadline_us is None:
            return
        cached = self._block_manager.cached_tokens(sequence)
        least_us = 0.0
        if self._cost.vouches_for(len(sequence.tokens) - cached):
            least_us = self._cost.prefill_us(len(sequence.tokens), cached) / PREDICTION_DOUBT
        late_us = self._now_us() + least_us - deadline_us
        if late_us > 0:
            raise DeadlineExpired(
                f"{len(sequence.tokens) - cached} prompt tokens take at least {least_us / 1000:.0f} ms, "
                f"{late_us / 1000:.0f} ms more than are left; give more time"
            )

    def add_sequence(self, sequence: LiveSequence, priority: int, deadline_us: int | None) -> None:
        """Take in a sequence that has its blocks, and give it its place in the order."""
        now_us = self._now_us()
        sequence.priority = priority
        sequence.deadline_us = now_us + PATIENCE_US if deadline_us is None else deadline_us
        sequence.waiting_since_us = now_us
        if not sequence.prefilling:  # its last token has just come from elsewhere
            self._await_token(sequence)
        self.lookups.forget(sequence.key)  # what was revised is another text
        self.offered.forget(sequence.key)
        if self.heads is not None:
            self.heads.forget(sequence.key)
        sequence.num_charged = max(sequence.num_charged, sequence.num_computed)
        self.hold_sequence(sequence)

    def hold_sequence(self, sequence: LiveSequence) -> None:
        """It is here from now on, instead of another of its key if there is one."""
        self.counters.join(sequence.share.tenant)
        replaced = self.sequences.get(sequence.key)
        if replaced is not None:
            self.counters.leave(replaced.share.tenant)
        self.sequences[sequence.key] = sequence

    def remove_sequence(self, key: str) -> bool:
        sequence = self.sequences.pop(key, None)
        if sequence is None:
            return False
        self.counters.leave(sequence.share.tenant)
        self._block_manager.free_blocks(sequence)
        self.lookups.end(sequence)
        self.offered.forget(key)
        if self.heads is not None:
            self.heads.forget(key)
        return True

    # --- the next step ---

    @property
    def has_work(self) -> bool:
        return self.has_work_beside(())

    def has_work_beside(self, waiting: Container[str]) -> bool:
        """Return whether there is work while the sequences `waiting` wait for their masks."""
        active = SequenceStatus.ACTIVE
        if any(each.status is active and each.key not in waiting for each in self.sequences.values()):
            return True
        preempted = self._preempted()
        return bool(preempted) and self._block_manager.can_resume(preempted[0])

    @property
    def requests(self) -> OwnRequests:
        """Return what steps are for now."""
        active = self._with_status(SequenceStatus.ACTIVE)
        prompts = sum(sequence.prefilling for sequence in active)
        return OwnRequests(len(active) - prompts, prompts)

    def schedule(self, waiting: Container[str] = (), undrafted: Container[str] = ()) -> SchedulerOutput:
        """Plan the next step. Sequences `waiting`, by key, have their logits and wait for masks; those
        `undrafted` would lose by drafts."""
        self._resume_preempted()
        active = [each for each in self._with_status(SequenceStatus.ACTIVE) if each.key not in waiting]
        resting = self._row_turns.resting([each for each in active if not each.prefilling])
        rests = [each for each in active if each.key in resting] if resting else []
        if resting:
            active = [each for each in active if each.key not in resting]
        reused = self._reuse_prefixes(active)
        preempted: list[str] = []
        for sequence in self._block_manager.insecure(active):
            self._make_way(sequence, preempted)
        if preempted:
            active = [sequence for sequence in active if sequence.status is SequenceStatus.ACTIVE]
        decoding = [sequence for sequence in active if not sequence.prefilling]
        prefilling = [sequence for sequence in active if sequence.prefilling]
        budget = self._max_batch_tokens - len(decoding)
        # Drafts are a bet, prompts are certain work: while a prompt waits, drafts get half of the rest.
        prices = DraftPrices.of(self._cost, _rows_of(decoding), self.row_costs.row_us)
        work, num_plain, features = self._decode(
            decoding, budget // 2 if prefilling else budget, undrafted, prices
        )
        if prefilling:
            room = self._max_batch_tokens - features.tokens
            now_us = self._now_us()
            waiting_streams = [*rests, *self._with_status(SequenceStatus.RESERVED)]
            chunk = self._step_limits.chunk_tokens(
                prefilling, decoding, waiting_streams, features, room, now_us
            )
            for sequence, num_tokens in self._shares(prefilling, chunk, now_us):
                work.append(Work.of(sequence, num_tokens, (), is_prefill=True))
                features = features.plus(span_features(sequence.num_computed, num_tokens))
                sequence.waiting_since_us = now_us
        drafting_us = 0 if self.heads is None else self.heads.drafting_us
        return SchedulerOutput(
            tuple(work),
            tuple(reused),
            tuple(preempted),
            features,
            num_plain,
            len(resting),
            prices,
            drafting_us,
        )

    def commit(self, sequence: LiveSequence) -> None:
        """Blocks that became full enter the prefix cache."""
        self._block_manager.commit(sequence)

    def advance(self, work: Work, num_tokens: int) -> None:
        """KV of `num_tokens` more tokens is final; blocks that became full enter the prefix cache."""
        sequence = work.sequence
        sequence.num_computed = work.start + num_tokens
        self._block_manager.commit(sequence)
        if not work.num_draws:
            pass
        elif sequence.inter_token_us == math.inf:
            sequence.due_us = math.inf
        else:
            self._await_token(sequence)
        if work.is_prefill or not self.counters.alone:
            self._charge(work, num_tokens)

    @property
    def advances_plainly(self) -> bool:
        """Return whether a plain row that fills no block advances its sequence and nothing else."""
        return self.counters.alone and self.heads is None and self._block_manager.is_whole

    def _await_token(self, sequence: LiveSequence) -> None:
        """Note when the token after the one that has just come is due."""
        waits_us = sequence.inter_token_us
        sequence.due_us = math.inf if waits_us == math.inf else self._now_us() + waits_us

    def _charge(self, work: Work, num_tokens: int) -> None:
        """A step has computed for a sequence. What it computes again, because it gave way, was charged
        before, and so was a token that was drawn."""
        sequence, cost = work.sequence, 0.0
        num_drawn = num_tokens - work.num_tokens + 1 if work.num_draws else 0
        if work.is_prefill:
            cost = prompt_cost(min(work.num_tokens, max(0, sequence.num_computed - sequence.num_charged)))
        if num_drawn:
            cost += step_cost(num_drawn, sequence.num_computed)
        sequence.num_charged = max(sequence.num_charged, sequence.num_computed + (num_drawn > 0))
        self.counters.charge(sequence.share, cost)

    def check(self, blocks: range | None = None) -> None:
        """Raise InternalError unless every block (of `blocks`), every length and all that is offloaded is
        explained."""
        self._block_manager.check(self.sequences.values(), blocks)

    # --- rows ---

    def _reuse_prefixes(self, active: Sequence[LiveSequence]) -> list[Reuse]:
        """Prompts that waited while others computed what they begin with go on behind that."""
        return [
            Reuse(sequence, sequence.num_computed - num_tokens, sequence.num_computed)
            for sequence in active
            if sequence.prefilling and (num_tokens := self._block_manager.catch_up(sequence))
        ]

    def _decode(
        self,
        decoding: Sequence[LiveSequence],
        draft_budget: int,
        undrafted: Container[str],
        prices: DraftPrices | None,
    ) -> tuple[list[Work], int, Features]:
        """A row for each, and its drafts: cut to what may be drawn, to what pays, to the budget and to blocks
        free right now. How many are plain comes with them: all or none."""
        keys = _rows_of(decoding).keys
        chosen = self._drafts(decoding, draft_budget, undrafted, prices)
        if not any(map(_draft_ids, chosen)):  # mostly
            rows = _rows_without_drafts(decoding)
            num_plain = len(rows) if all(map(_num_draws, rows)) else 0
            return rows, num_plain, Features(len(decoding), len(decoding), keys)
        work: list[Work] = []
        num_drafts = 0
        for sequence, wanted in zip(decoding, chosen, strict=True):
            drafts = wanted
            if wanted.token_ids:
                drafts = wanted.cut(self._block_manager.extend(sequence, len(wanted.token_ids)))
                count = len(drafts.token_ids)
                num_drafts += count
                keys += count * (sequence.num_computed + 1) + count * (count + 1) // 2
            work.append(
                Work.of(
                    sequence,
                    1,
                    drafts.token_ids,
                    is_prefill=False,
                    match_tokens=drafts.match_tokens,
                    confidences=drafts.confidences,
                )
            )
        return work, 0, Features(len(decoding) + num_drafts, len(decoding), keys)

    def _drafts(
        self,
        decoding: Sequence[LiveSequence],
        budget: int,
        undrafted: Container[str],
        prices: DraftPrices | None,
    ) -> list[Drafts]:
        """Return for each what was offered, else what this engine drafts itself."""
        self.offered.begin_step()
        if not undrafted and not any(sequence.drafts for sequence in decoding):
            return self._own_drafts.draft(decoding, budget, prices)
        chosen: list[Drafts] = []
        left: list[int] = []
        for place, sequence in enumerate(decoding):
            drafts = NO_DRAFTS
            if sequence.key in undrafted:
                sequence.drafts = ()
            else:
                if sequence.drafts:
                    most = min(sequence.draw_limit - 1, budget)
                    drafts = Drafts(self.offered.choose(sequence, most, prices))
                    budget -= len(drafts.token_ids)
                if not drafts.token_ids:
                    left.append(place)
            chosen.append(drafts)
        own = self._own_drafts.draft([decoding[place] for place in left], budget, prices)
        for place, drafts in zip(left, own, strict=True):
            chosen[place] = drafts
        return chosen

    def _shares(
        self, prefilling: Sequence[LiveSequence], chunk: int, now_us: int
    ) -> Iterator[tuple[LiveSequence, int]]:
        """Return what each prompt gets of the chunk, and those that are scored in smaller parts."""
        room = MAX_SCORED_TOKENS
        for sequence, share in self._prompt_order.share_chunk(prefilling, chunk, now_us):
            num_tokens = share
            if sequence.num_scored < sequence.prompt_len:
                num_tokens = min(share, room)
                room -= num_tokens
            if num_tokens:
                yield sequence, num_tokens

    # --- who gives way ---

    def _preempted(self) -> list[LiveSequence]:
        chosen = self._with_status(SequenceStatus.PREEMPTED)
        if len(chosen) > 1:
            now_us = self._now_us()
            chosen.sort(key=lambda sequence: precedence(sequence, now_us, self.counters))
        return chosen

    def _is_before(self, sequence: LiveSequence, priority: int, share: TenantShare) -> bool:
        """Whether a sequence that waits for blocks goes before a new one of this class and share."""
        tenant = sequence.share.tenant
        if tenant != share.tenant:
            return self.counters.level(tenant) <= self.counters.level(share.tenant)
        return class_at(sequence, self._now_us()) <= priority

    def _resume_preempted(self) -> None:
        """Resume preempted sequences as far as there are blocks; nobody waits for KV that is still being
        read."""
        for sequence in self._preempted():
            if not self._block_manager.can_resume(sequence):
                return
            if not self._block_manager.landed(sequence) and self._with_status(SequenceStatus.ACTIVE):
                return
            self._block_manager.resume(sequence)

    def _make_way(self, sequence: LiveSequence, preempted: list[str]) -> None:
        """Secure the next write of `sequence`: others give way until there are blocks for it, or it does."""
        while sequence.status is SequenceStatus.ACTIVE and not self._block_manager.secure(sequence):
            unpinned = (other for other in self._with_status(SequenceStatus.ACTIVE) if not other.pinned)
            victim = max(unpinned, key=lambda other: keeps_blocks(other, self.counters))
            self._block_manager.preempt(victim)
            victim.waiting_since_us = self._now_us()
            victim.times_preempted += 1
            preempted.append(victim.key)

    def _with_status(self, status: SequenceStatus) -> list[LiveSequence]:
        return [sequence for sequence in self.sequences.values() if sequence.status is status]


def _rows_without_drafts(decoding: Sequence[LiveSequence]) -> list[Work]:
    """Return the work of sequences that nobody drafts for: the row of the token that came last."""
    starts = [sequence.num_computed for sequence in decoding]
    draws = [int(start + 1 == len(sequence.tokens)) for start, sequence in zip(starts, decoding, strict=True)]
    columns = repeat(1), repeat(()), repeat(False), draws, repeat(0), repeat(())
    return list(map(_work_of, zip(decoding, starts, *columns, strict=False)))


def _rows_of(decoding: Sequence[LiveSequence]) -> Features:
    """Return the work of a row for each."""
    keys = sum([sequence.num_computed for sequence in decoding]) + len(decoding)
    return Features(len(decoding), len(decoding), keys)
