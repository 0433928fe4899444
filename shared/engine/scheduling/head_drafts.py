"""Drafts of a draft head, where it promises more than a sequence's own text and more than it costs.

A head is asked for all sequences of a step at once. How much of a draft is verified follows from the
confidence that the head states with each token (DSpark) and from how often tokens of such a confidence were
right. Whether asking pays, from what its drafts have promised so lately, for each sequence and for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.head_chances import HeadChances
from shared.engine.scheduling.head_model import DraftRequest, HeadDraft, HeadModel, TapRows
from shared.engine.scheduling.head_record import HeadRecord
from shared.engine.sequence import LiveSequence
from shared.seams.clock import SYSTEM_CLOCK

HEAD_TOKENS = 8
"""The most tokens that a head drafts for a sequence in a step."""
LEAST_SHARE_US = 300
"""The least time of a sequence in a step: to ask takes Python 20 µs and more, whatever the head is."""
RETRY_AFTER = 128
"""All sequences are drafted one token for in one step of so many, whatever has come of it: text changes."""
RETRY_BESIDE_OTHERS = 32
"""The same for a sequence whose own drafts do not pay, where those of others do."""
_LEARNING = 0.1  # the least weight of one time of asking
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
    """The record of one sequence; `num_tokens` is how many it had when its hidden states were kept."""

    __slots__ = ("num_tokens", "record", "slot", "trust")

    def __init__(self, slot: int, record: HeadRecord) -> None:
        self.slot = slot
        self.num_tokens = 0
        self.record = record
        self.trust = 1.0


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
        self._token_us = 0.0  # what the head takes for a token of one sequence
        self._prices: DraftPrices | None = None
        self._steps = 0

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
                row = self._rows[sequence.key] = _HeadRow(self._free.pop(), self._record.inherited())
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
        self._steps += 1
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
            others_pay = self._record.gain(price, head_price) > 0
            if gain or self._steps % (RETRY_BESIDE_OTHERS if others_pay else RETRY_AFTER):
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
            row.trust,
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
        row.trust = self._chances.learn(confidences, accepted, row.trust)

    def _offer(self, sequence: LiveSequence, request: DraftRequest, draft: HeadDraft, room: int) -> Offer:
        assert self._prices is not None
        row = self._rows[sequence.key]
        price = self._prices.of_token(sequence.num_computed)
        least = price if request.floor else 0.0  # what is tried is verified, whatever it promises
        count, right = self._chances.bet(draft.confidences[:room], row.trust, least)
        row.record.learn(_LEARNING, right, count, draft.steps)
        self._record.learn(_LEARNING, right, count, draft.steps)
        return Offer(draft.token_ids[:count], draft.confidences[:count], right - price * count)

    def _learn_cost(self, token_us: float) -> None:
        if not self._token_us:
            self._token_us = token_us
        most = _WORST_COST * self._token_us
        self._token_us += _COST_LEARNING * (min(token_us, most) - self._token_us)
