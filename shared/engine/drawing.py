"""From logits to the tokens that sequences keep: draws, verifies drafts, ends sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from shared.engine.sampler import DrawRow, TokenCounts, TokenLogprob, draw
from shared.engine.scheduler import Work
from shared.engine.sequence import LiveSequence


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one sequence keeps of a step; `accepted_drafts` of its tokens were guessed right."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    accepted_drafts: int


class Drawer:
    """Remembers of each sequence what drawing needs and its tokens can rebuild: counts for the penalties."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: dict[str, TokenCounts] = {}

    def track(self, sequence: LiveSequence) -> None:
        """Begin with a sequence as it is now; whatever it has generated is taken into account."""
        if sequence.params.has_penalties:
            counts = TokenCounts(self._vocab_size, sequence.tokens, sequence.prompt_len)
            self._counts[sequence.key] = counts

    def forget(self, key: str) -> None:
        self._counts.pop(key, None)

    def draw(self, work: Sequence[Work], logits: Tensor) -> list[Drawn]:
        """`logits` [sum of num_draws, vocab], which is overwritten; one Drawn per work. Appends nothing to
        the sequences' tokens: that is the caller's part."""
        rows = [row for each in work for row in self._rows(each)]
        token_ids, logprobs = draw(logits, rows) if rows else ([], [])
        drawn: list[Drawn] = []
        first = 0
        for each in work:
            place = slice(first, first + each.num_draws)
            first += each.num_draws
            drawn.append(self._keep(each, token_ids[place], logprobs[place]))
        return drawn

    def _rows(self, work: Work) -> Iterator[DrawRow]:
        """A row per draw; row j assumes that the drafts before it were right."""
        sequence = work.sequence
        counts = self._counts.get(sequence.key)
        for index in range(work.num_draws):
            position = len(sequence.tokens) + index
            yield DrawRow(
                sequence.params,
                position,
                () if sequence.may_end_at(position) else tuple(sorted(sequence.end_ids)),
                counts.plus(work.drafts[:index]) if counts is not None else None,
            )

    def _keep(self, work: Work, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> Drawn:
        """Draws up to the first that differs from its draft, or that ends the sequence."""
        sequence = work.sequence
        kept: list[int] = []
        accepted, reason = 0, None
        for token_id, draft in zip(ids, [*work.drafts, None], strict=True):
            kept.append(token_id)
            reason = _finish_reason(sequence, token_id, len(sequence.tokens) + len(kept))
            accepted += token_id == draft
            if reason is not None or token_id != draft:
                break
        if sequence.key in self._counts:
            self._counts[sequence.key].add(kept)
        told = tuple(logprob for logprob in logprobs[: len(kept)] if logprob is not None)
        return Drawn(tuple(kept), told, reason, accepted)


def _finish_reason(sequence: LiveSequence, token_id: int, num_tokens: int) -> str | None:
    if token_id in sequence.end_ids:
        return "stop"
    return "length" if num_tokens >= sequence.end_len else None
