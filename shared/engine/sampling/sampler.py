"""Turn logits into the tokens that sequences keep: draw, verify drafts, end sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from shared.engine.sampling.draw import draw
from shared.engine.sampling.draw_row import DrawRow, TokenCounts
from shared.engine.sampling.id_rules import ANY_ID, IdRules
from shared.engine.scheduling.scheduler import Work
from shared.engine.sequence import LiveSequence
from shared.sampling.parameters import TokenLogprob


class Drawn(NamedTuple):
    """The tokens that one sequence keeps of a step; `accepted_drafts` of them were guessed right.

    `finish_reason` is "stop", "length", "error" (nothing could be drawn) or None.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    accepted_drafts: int


class Sampler:
    """Remembers of each sequence what drawing needs and its tokens can rebuild: counts for the penalties,
    and which ids may come next."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: dict[str, TokenCounts] = {}
        self._rules: dict[str, IdRules] = {}

    def track(self, sequence: LiveSequence) -> None:
        """Begin with a sequence as it is now; whatever it has generated is taken into account."""
        if IdRules.needed(sequence.params):  # first: this may raise, and nothing is remembered then
            self._rules[sequence.key] = IdRules(sequence, self._vocab_size)
        if sequence.params.has_penalties:
            counts = TokenCounts(self._vocab_size, sequence.tokens, sequence.prompt_len)
            self._counts[sequence.key] = counts

    def forget(self, key: str) -> None:
        self._counts.pop(key, None)
        self._rules.pop(key, None)

    def sample(self, work: Sequence[Work], logits: Tensor) -> list[Drawn]:
        """`logits` [sum of num_draws, vocab], which is overwritten; one Drawn per work. Appends nothing to
        the sequences' tokens: that is the caller's part."""
        rows = [row for each in work for row in self._rows(each)]
        token_ids, logprobs = draw(logits, rows) if rows else ([], [])
        drawn: list[Drawn] = []
        first = 0
        for each in work:
            last = first + each.num_draws
            drawn.append(self._keep(each, token_ids[first:last], logprobs[first:last]))
            first = last
        return drawn

    def _rows(self, work: Work) -> list[DrawRow]:
        """A row per draw; row j assumes that the drafts before it were right."""
        sequence, drafts = work.sequence, work.drafts
        position, params = len(sequence.tokens), sequence.params
        rules, counts = self._rules.get(sequence.key), self._counts.get(sequence.key)
        if rules is None and counts is None:
            if not drafts:
                return [DrawRow(params, position)]
            return [DrawRow(params, position + index) for index in range(work.num_draws)]
        allowed = rules.rows(drafts) if rules is not None else [ANY_ID] * work.num_draws
        return [
            DrawRow(
                params,
                position + index,
                rule.blocked_ids,
                counts.plus(drafts[:index]) if counts is not None else None,
                rule.allowed,
            )
            for index, rule in enumerate(allowed)
        ]

    def _keep(self, work: Work, ids: Sequence[int | None], logprobs: Sequence[TokenLogprob | None]) -> Drawn:
        """Draws up to the first that differs from its draft, or that ends the sequence."""
        sequence = work.sequence
        kept: list[int] = []
        accepted, reason = 0, None
        for token_id, draft in zip(ids, (*work.drafts, None), strict=True):
            if token_id is None:
                reason = "error"
                break
            kept.append(token_id)
            reason = self._finish_reason(sequence, token_id, len(sequence.tokens) + len(kept))
            accepted += token_id == draft
            if reason is not None or token_id != draft:
                break
        if sequence.key in self._counts:
            self._counts[sequence.key].add(kept)
        told = tuple([logprob for logprob in logprobs[: len(kept)] if logprob is not None])
        return Drawn(tuple(kept), told, reason, accepted)

    def _finish_reason(self, sequence: LiveSequence, token_id: int, num_tokens: int) -> str | None:
        rules = self._rules.get(sequence.key)
        if token_id in sequence.end_ids if rules is None else rules.ends(token_id):
            return "stop"
        return "length" if num_tokens >= sequence.end_len else None
