"""Drafts of a draft head, where it promises more than a sequence's own text and more than it costs.

A head is asked for all sequences of a step at once. How much of a draft is verified follows from the
confidence that the head states with each token (DSpark) and from how often tokens of such a confidence were
right. Whether asking pays, from what it has brought and cost lately, for each sequence and for all: to read
the head's weights takes as long for one as for many, and is paid by those together who ask. Where asking does
not pay, one token is tried now and then, for several sequences at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.head_chances import HeadChances, HeadTrust
from shared.engine.scheduling.head_cost import HeadCost
from shared.engine.scheduling.head_model import DraftRequest, HeadDraft, HeadModel, TapRows
from shared.engine.scheduling.head_record import HeadRecord
from shared.engine.scheduling.probes import Probes, Tries
from shared.engine.sequence import LiveSequence
from shared.seams.clock import SYSTEM_CLOCK

HEAD_TOKENS = 7
"""The most tokens that a head drafts for a sequence in a step: with its own row they are as many as the
kernels multiply at once. A ninth row takes as long as four of them."""
LEAST_SHARE_US = 300
"""The least time of a sequence in a step: to ask takes Python 20 µs and more, whatever the head is."""
TRIED_TOGETHER = 4
"""The sequences that a token is tried for in the same step, where there are so many."""
REST_STEPS = 8
"""The steps in which a head is left alone, where it did not pay for anybody: even to find that out takes some
µs of each sequence."""
_MEASURED_ROWS = 8


def monotonic_ns() -> int:
    return SYSTEM_CLOCK.monotonic_ns()


def thread_cpu_ns() -> int:
    return SYSTEM_CLOCK.thread_cpu_ns()


class HeadWish(NamedTuple):
    """A sequence that may take up to `most` tokens; another draft promises `gain`, and is taken unless the
    head promises more."""

    sequence: LiveSequence
    most: int
    gain: float


class Offer(NamedTuple):
    """A draft of the head, and the steps that are saved by verifying it beyond what that costs."""

    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]
    gain: float


class _HeadRow:
    """The record of one sequence; `num_tokens` is how many it had when its hidden states were kept. Until it
    is asked for, it has what others have shown.

    `computed`: the tokens that the head computed for the draft that is verified next. The first `bet` of it
    promise to pay: `hoped` are expected to be right."""

    __slots__ = ("bet", "computed", "hoped", "num_tokens", "record", "slot", "tries", "trust")

    def __init__(self, slot: int, tries: Tries) -> None:
        self.slot = slot
        self.num_tokens = 0
        self.record: HeadRecord | None = None
        self.trust: HeadTrust | None = None
        self.tries = tries
        self.computed = 0
        self.bet = 0
        self.hoped = 0.0


class _Candidate(NamedTuple):
    """A sequence that may be asked for, by its place; a verified token of it costs `price`."""

    place: int
    row: _HeadRow
    price: float


class HeadDrafts:
    """`most_sequences`: how many have room for their hidden states."""

    def __init__(
        self,
        head: HeadModel,
        most_sequences: int,
        batch_tokens: int,
        *,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.longest = HEAD_TOKENS
        self.drafting_us = 0
        """The time that the head took in the step that is planned."""
        self._head = head
        self._batch_tokens = batch_tokens
        self._now_ns = now_ns
        self._taps: TapRows = np.zeros((most_sequences, head.tap_width), np.float32)
        self._free = list(range(most_sequences))
        self._rows: dict[str, _HeadRow] = {}
        self._chances = HeadChances()
        self._record = HeadRecord()
        self._probes = Probes()
        self._cost = HeadCost()
        self._resting = 0  # steps, from this one on
        self._prices: DraftPrices | None = None

    @property
    def nbytes(self) -> int:
        """Return what the hidden states take."""
        return self._taps.nbytes

    # --- hidden states ---

    def keep(self, drawn: Sequence[tuple[LiveSequence, int]], taps: TapRows) -> None:
        """Sequences have drawn their last token from these rows of `taps` [rows, tap width]."""
        if self._resting > 1:  # nobody asks in the next step
            return
        slots, places = [], []
        for sequence, place in drawn:
            row = self._rows.get(sequence.key)
            if row is None:
                if not self._free:
                    continue
                row = self._rows[sequence.key] = _HeadRow(self._free.pop(), Tries(self._probes))
            row.num_tokens = len(sequence.tokens)
            slots.append(row.slot)
            places.append(place)
        if slots:
            self._taps[slots] = taps[places]

    def forget(self, key: str) -> None:
        """The sequence is gone, or its text has changed."""
        row = self._rows.pop(key, None)
        if row is not None:
            self._free.append(row.slot)

    # --- drafts ---

    def measure(self) -> None:
        """Ask for one row and for several, for nobody, so that the first who asks knows what it takes."""
        most = min(_MEASURED_ROWS, len(self._taps))
        nobody = [DraftRequest(slot, 0, 1, 0.0, 0, 1) for slot in range(most)]
        self._head.draft(self._taps, nobody, self._chances.by_bin)  # the first time takes longer
        for count in (1, most):
            self._timed(nobody[:count])

    def begin_step(self, prices: DraftPrices | None) -> bool:
        """A step is planned in which tokens cost `prices`; False where no draft can pay in it."""
        self.drafting_us = 0
        self._probes.begin_step()
        self._prices = prices
        self._resting = max(0, self._resting - 1)
        if not self.longest or prices is None or prices.share_us < LEAST_SHARE_US or self._resting:
            return False
        if prices.row >= HIGHEST_PRICE:
            self._resting = REST_STEPS
        return not self._resting

    def requests(self, wishes: Sequence[HeadWish]) -> list[DraftRequest | None]:
        """Return what to ask for each: nothing where the head promises no more than others do, or than it
        costs to ask and verify. All together pay for the reading of its weights."""
        prices = self._prices
        assert prices is not None
        asked: list[DraftRequest | None] = [None] * len(wishes)
        pass_price, row_price = self._cost.pass_us / prices.share_us, self._cost.row_us / prices.share_us
        bets: list[_Candidate] = []
        idle: list[_Candidate] = []
        promised = passes = 0.0
        for place, wish in enumerate(wishes):
            row = self._rows.get(wish.sequence.key)
            if row is None or wish.most < 1 or not self._is_known(row, wish.sequence):
                continue
            price = prices.of_token(wish.sequence.num_computed)
            if price >= HIGHEST_PRICE:
                continue
            record = row.record or self._record
            more = record.gain(price, row_price) - wish.gain
            if more > 0:
                bets.append(_Candidate(place, row, price))
                promised += more
                passes = max(passes, record.computed)
            elif not wish.gain:
                idle.append(_Candidate(place, row, price))
        if promised <= pass_price * passes:
            idle += [each for each in bets if not wishes[each.place].gain]
            bets = []
        tried = self._tried(idle, 0.0 if bets else pass_price, row_price)
        if idle and not bets and not tried and not any(wish.gain for wish in wishes):
            self._resting = REST_STEPS
        head_price = row_price + pass_price / max(1, len(bets) + len(tried))
        for each in bets:
            length = min(wishes[each.place].most, self.longest)
            asked[each.place] = self._request(wishes[each.place], each, length, each.price, head_price)
        for each in tried:
            asked[each.place] = self._request(wishes[each.place], each, 1, 0.0, head_price)
        return asked

    def _is_known(self, row: _HeadRow, sequence: LiveSequence) -> bool:
        return row.num_tokens == len(sequence.tokens) and sequence.on_layer is None

    def _tried(self, idle: list[_Candidate], pass_price: float, row_price: float) -> list[_Candidate]:
        """Return those of `idle` for whom a token is tried, which failed least: several, who pay for the
        reading of the weights together, or one where that is paid."""
        assert self._prices is not None
        if not idle:
            return []
        if len(idle) > 1:
            idle.sort(key=lambda each: each.row.tries.failures)
        group = idle[: TRIED_TOGETHER if pass_price else 1]
        cost, needed = pass_price, pass_price * (1 + group[0].row.tries.failures)
        for each in group:
            cost += each.price + row_price
            needed += (each.price + row_price) * (1 + each.row.tries.failures)
        sequences = self._prices.sequences
        if not self._probes.take(cost / sequences, needed / sequences, len(group)):
            return []
        for each in group:
            each.row.tries.begin(sequences)
        return group

    def _request(
        self, wish: HeadWish, chosen: _Candidate, length: int, floor: float, head_price: float
    ) -> DraftRequest:
        row, sequence = chosen.row, wish.sequence
        if row.record is None or row.trust is None:
            row.record, row.trust = self._record.inherited(), self._chances.new_trust()
        params = sequence.params
        return DraftRequest(
            row.slot,
            sequence.tokens[-1],
            len(sequence.tokens),
            params.temperature,
            params.seed,
            length,
            floor,
            chosen.price + head_price,
            row.trust.value,
        )

    def ask(self, asked: Sequence[tuple[LiveSequence, DraftRequest]], num_taken: int = 0) -> list[Offer]:
        """Return an offer for each, of no tokens where none is worth verifying. Of what the step may verify
        of such drafts `num_taken` tokens are others'."""
        drafts, took_us = self._timed([request for _, request in asked])
        self.drafting_us = int(took_us)
        room = max(0, self._batch_tokens - num_taken)
        offers = []
        for (sequence, request), draft in zip(asked, drafts, strict=True):
            offer = self._offer(sequence, request, draft, room)
            room -= len(offer.token_ids)
            offers.append(offer)
        return offers

    def _timed(self, requests: Sequence[DraftRequest]) -> tuple[list[HeadDraft], float]:
        """Return drafts, and the time that they took, which is learned from."""
        began_ns = self._now_ns()
        drafts = self._head.draft(self._taps, requests, self._chances.by_bin)
        took_us = (self._now_ns() - began_ns) / 1000
        steps = [draft.steps for draft in drafts]
        self._cost.observe(max(steps), sum(steps), took_us)
        return drafts, took_us

    def judge(self, key: str, confidences: Sequence[float], accepted: int) -> None:
        """Learn from a step that verified tokens of these confidences."""
        row = self._rows[key]
        assert row.trust is not None
        self._chances.learn(confidences, accepted, row.trust)
        verified = min(row.bet, len(confidences))
        self._learn(row, min(accepted, verified), verified)
        row.tries.judge(accepted)

    def _offer(self, sequence: LiveSequence, request: DraftRequest, draft: HeadDraft, room: int) -> Offer:
        assert self._prices is not None
        row = self._rows[sequence.key]
        price = self._prices.of_token(sequence.num_computed)
        row.computed = draft.steps
        row.bet, row.hoped = self._chances.bet(draft.confidences[:room], request.trust, price)
        # what is tried is verified, whatever it promises
        count = row.bet if request.floor else min(room, len(draft.token_ids))
        if not count:
            self._learn(row, 0, 0)
        return Offer(draft.token_ids[:count], draft.confidences[:count], row.hoped - price * row.bet)

    def _learn(self, row: _HeadRow, right: int, verified: int) -> None:
        """Take in what has come of a bet, or would have come of it where a token was only tried."""
        assert row.record is not None
        for record in (row.record, self._record):
            record.learn(row.hoped, right, verified, row.computed)
