"""Drafts of a draft head, where it promises more than a sequence's own text and more than it costs.

A head is asked for all sequences of a step at once. How much of a draft is verified follows from the
confidence that the head states with each token (DSpark) and from how often tokens of such a confidence were
right. Whether asking pays, from what it has brought and cost lately, for each sequence and for all; where it
does not, one token is tried now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.head_chances import HeadChances, HeadTrust
from shared.engine.scheduling.head_model import DraftRequest, HeadDraft, HeadModel, TapRows
from shared.engine.scheduling.head_record import HeadRecord
from shared.engine.scheduling.probes import Probes, Tries
from shared.engine.sequence import LiveSequence
from shared.seams.clock import SYSTEM_CLOCK

HEAD_TOKENS = 8
"""The most tokens that a head drafts for a sequence in a step."""
LEAST_SHARE_US = 300
"""The least time of a sequence in a step: to ask takes Python 20 µs and more, whatever the head is."""
_COST_LEARNING = 0.1
_WORST_COST = 4.0  # times what it took before: a call that was interrupted says little


def monotonic_ns() -> int:
    return SYSTEM_CLOCK.monotonic_ns()


class Offer(NamedTuple):
    """A draft of the head, and the steps that are saved by verifying it beyond what that costs."""

    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]
    gain: float


class _HeadRow:
    """The record of one sequence; `num_tokens` is how many it had when its hidden states were kept.

    `computed`: the tokens that the head computed for the draft that is verified next. The first `bet` of it
    promise to pay: `hoped` are expected to be right."""

    __slots__ = ("bet", "computed", "hoped", "num_tokens", "record", "slot", "tries", "trust")

    def __init__(self, slot: int, record: HeadRecord, trust: HeadTrust, tries: Tries) -> None:
        self.slot = slot
        self.num_tokens = 0
        self.record = record
        self.trust = trust
        self.tries = tries
        self.computed = 0
        self.bet = 0
        self.hoped = 0.0


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
        self._token_us = 0.0  # what the head takes for a token of one sequence
        self._prices: DraftPrices | None = None

    @property
    def nbytes(self) -> int:
        """Return what the hidden states take."""
        return self._taps.nbytes

    # --- hidden states ---

    def keep(self, drawn: Sequence[tuple[LiveSequence, int]], taps: TapRows) -> None:
        """Sequences have drawn their last token from these rows of `taps` [rows, tap width]."""
        slots, places = [], []
        for sequence, place in drawn:
            row = self._rows.get(sequence.key)
            if row is None:
                if not self._free:
                    continue
                record, trust = self._record.inherited(), self._chances.new_trust()
                row = _HeadRow(self._free.pop(), record, trust, Tries(self._probes))
                self._rows[sequence.key] = row
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

    def begin_step(self, prices: DraftPrices | None) -> bool:
        """A step is planned in which tokens cost `prices`; False where no draft can pay in it."""
        self.drafting_us = 0
        self._probes.begin_step()
        self._prices = prices
        if not self.longest or prices is None or prices.share_us < LEAST_SHARE_US:
            return False
        return prices.row < HIGHEST_PRICE

    def request(self, sequence: LiveSequence, most: int, gain: float) -> DraftRequest | None:
        """Return what to ask for a sequence that may take up to `most` tokens; None where another draft
        promises `gain`, and the head no more than that."""
        row = self._rows.get(sequence.key)
        if row is None or row.num_tokens != len(sequence.tokens) or sequence.on_layer is not None:
            return None
        assert self._prices is not None
        price = self._prices.of_token(sequence.num_computed)
        head_price = self._token_us / self._prices.share_us
        if most < 1 or price >= HIGHEST_PRICE:
            return None
        length, floor, need = min(most, self.longest), price, price + head_price
        if row.record.gain(price, head_price) <= gain:
            if gain or not row.tries.take(need, self._prices.sequences):
                return None
            length, floor = 1, 0.0
        params = sequence.params
        return DraftRequest(
            row.slot,
            sequence.tokens[-1],
            len(sequence.tokens),
            params.temperature,
            params.seed,
            length,
            floor,
            need,
            row.trust.value,
        )

    def ask(self, asked: Sequence[tuple[LiveSequence, DraftRequest]], num_taken: int = 0) -> list[Offer]:
        """Return an offer for each, of no tokens where none is worth verifying. Of what the step may verify
        of such drafts `num_taken` tokens are others'."""
        began_ns = self._now_ns()
        requests = [request for _, request in asked]
        drafts = self._head.draft(self._taps, requests, self._chances.by_bin)
        took_us = (self._now_ns() - began_ns) / 1000
        self.drafting_us = int(took_us)
        self._learn_cost(took_us / max(1, sum(draft.steps for draft in drafts)))
        room = max(0, self._batch_tokens - num_taken)
        offers = []
        for (sequence, request), draft in zip(asked, drafts, strict=True):
            offer = self._offer(sequence, request, draft, room)
            room -= len(offer.token_ids)
            offers.append(offer)
        return offers

    def judge(self, key: str, confidences: Sequence[float], accepted: int) -> None:
        """Learn from a step that verified tokens of these confidences."""
        row = self._rows[key]
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
        for record in (row.record, self._record):
            record.learn(row.hoped, right, verified, row.computed)

    def _learn_cost(self, token_us: float) -> None:
        if not self._token_us:
            self._token_us = token_us
        most = _WORST_COST * self._token_us
        self._token_us += _COST_LEARNING * (min(token_us, most) - self._token_us)
