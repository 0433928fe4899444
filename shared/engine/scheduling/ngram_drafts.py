"""Drafts from a sequence's own text and earlier answers, for steps that nobody has drafted for."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.earlier_answers import AnswerText, EarlierAnswers
from shared.engine.scheduling.match_chances import Bet, MatchChances
from shared.engine.scheduling.ngram_index import LONGEST_MATCH, NO_GUESS, Guess, NgramIndex
from shared.engine.scheduling.probes import Probes, Tries
from shared.engine.sequence import LiveSequence

STARTING_CHANCES = (0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8)
"""The chance that a token is right which followed a match of 2, 3, … tokens, while its sequence has not shown
more."""
LEAST_SHARE_US = 150
"""The least time of a sequence in a step. To look takes 2 µs or so; where a step is shorter, that is too much
of it."""
INDEXED_PER_STEP_US = 0.1
"""Tokens taken in per microsecond of a step: about a fiftieth of it, where a long prompt has just come in."""


class _Row:
    """The record of one sequence: `judged` are the chances of the text that its last draft is from."""

    __slots__ = ("chances", "judged", "lookup", "tries")

    def __init__(self, probes: Probes) -> None:
        self.lookup = NgramIndex()
        self.chances = self.judged = MatchChances(STARTING_CHANCES)
        self.tries = Tries(probes)


class NgramDrafts:
    """`longest`: most tokens per sequence and step, 0 for none; `batch_tokens`: most in a step; `scopes`: of
    how many the latest answers are looked up, too."""

    def __init__(self, longest: int, batch_tokens: int, scopes: int = 0) -> None:
        self.longest = longest
        self.earlier = EarlierAnswers(scopes)
        self._batch_tokens = batch_tokens
        self._rows: dict[str, _Row] = {}
        self._room = 0
        self._index_room = 0
        self._prices: DraftPrices | None = None
        self._probes = Probes(0.0)  # what text is worth is known well enough at first

    def begin_step(self, prices: DraftPrices | None) -> bool:
        """A step is planned in which tokens cost `prices`; False where no draft can pay in it."""
        self._prices = prices
        self._probes.begin_step()
        if not self.longest or prices is None or prices.share_us < LEAST_SHARE_US:
            return False
        if prices.row >= HIGHEST_PRICE:
            return False
        self._room = self._batch_tokens
        self._index_room = int(prices.step_us * INDEXED_PER_STEP_US)
        return True

    def draft(self, sequence: LiveSequence, most: int) -> Guess:
        """Draft up to `most` tokens, each right often enough, with all before it, to save more than it
        costs."""
        assert self._prices is not None
        price = self._prices.of_token(sequence.num_computed)
        most = min(most, self.longest, self._room)
        if price >= HIGHEST_PRICE or sequence.on_layer is not None or most < 1:
            return NO_GUESS
        row = self._rows.get(sequence.key)
        if row is None:
            row = self._rows[sequence.key] = _Row(self._probes)
        guess, bet = self._from_own_text(row, sequence.tokens, most, price)
        row.judged = row.chances
        earlier = self.earlier.of(sequence.answer_scope) if guess.match_tokens < LONGEST_MATCH else None
        if earlier is not None:
            other, others_bet = self._from_earlier_answers(earlier, sequence.tokens, most, price)
            if other.match_tokens > guess.match_tokens and others_bet.gain >= bet.gain:
                guess, bet, row.judged = other, others_bet, earlier.chances
        if not guess.match_tokens:
            return NO_GUESS
        count = bet.num_tokens
        if not count:
            if not row.tries.take(price, self._prices.sequences):
                return NO_GUESS
            count = 1
        self._room -= count
        return guess.cut(count)

    def gain(self, sequence: LiveSequence, guess: Guess) -> float:
        """Return the steps that a guess of this step promises to save beyond its cost."""
        if not guess.token_ids:
            return 0.0
        assert self._prices is not None
        price = self._prices.of_token(sequence.num_computed)
        chances = self._rows[sequence.key].judged
        return chances.bet(guess.match_tokens, len(guess.token_ids), price).gain

    def judge(self, key: str, match_tokens: int, proposed: int, accepted: int) -> None:
        """Learn from a step that verified `proposed` tokens."""
        row = self._rows[key]
        row.judged.learn(match_tokens, proposed, accepted)
        row.tries.judge(accepted)

    def forget(self, key: str) -> None:
        """The sequence is gone, or its text has changed."""
        self._rows.pop(key, None)

    def end(self, sequence: LiveSequence) -> None:
        """The sequence is gone; its answer is looked up for others of its scope."""
        self.forget(sequence.key)
        if sequence.answer_scope:
            self.earlier.keep(sequence.answer_scope, sequence.tokens, sequence.prompt_len)

    def _from_own_text(self, row: _Row, tokens: Sequence[int], most: int, price: float) -> tuple[Guess, Bet]:
        if row.lookup.num_indexed < len(tokens):
            self._index_room -= row.lookup.index(tokens, self._index_room)
        guess = row.lookup.look_up(tokens, most)
        return guess, row.chances.bet(guess.match_tokens, len(guess.token_ids), price)

    def _from_earlier_answers(
        self, text: AnswerText, tokens: Sequence[int], most: int, price: float
    ) -> tuple[Guess, Bet]:
        self._index_room -= text.index(self._index_room)
        guess = text.look_up(tokens, most)
        return guess, text.chances.bet(guess.match_tokens, len(guess.token_ids), price)
