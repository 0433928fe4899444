"""Turn logits into the tokens that sequences keep: draw, verify drafts, end sequences.

Where a grammar's mask is not there yet, the logits are kept until it is: its sequence waits, no other does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, cast

from torch import Tensor

from shared.engine.sampling.candidates import LikelyDraw, rank_draws
from shared.engine.sampling.draw import draw, draw_packed, native_sampler
from shared.engine.sampling.draw_row import DrawRow, TokenCounts
from shared.engine.sampling.grammar_row import GrammarRow
from shared.engine.sampling.id_rules import ANY_ID, IdRules
from shared.engine.sampling.mask_threads import MaskBatch, MaskThreads
from shared.engine.sampling.native_sampler import NativeSampler, PackedOptions, packed_at, packed_row
from shared.engine.scheduling.scheduler import Work
from shared.engine.sequence import LiveSequence
from shared.errors import PenstockError
from shared.sampling.parameters import TokenLogprob


class Drawn(NamedTuple):
    """The tokens that one sequence keeps of a step; `accepted_drafts` of them were guessed right.

    `finish_reason` is "stop", "length", "error" (nothing could be drawn; `fault` says why where its grammar
    cannot be followed) or None.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    accepted_drafts: int
    fault: PenstockError | None = None
    candidates: tuple[tuple[LikelyDraw, ...], ...] = ()
    """The likeliest outcomes of each of these draws, where its sequence wants them told."""


_num_candidates = attrgetter("num_candidates")

Kept = Drawn | int
"""The tokens that a sequence keeps of a step: mostly one that nobody guessed and of which nothing is told.
The caller sees whether that one ends the sequence."""


class Postponed(NamedTuple):
    """A draw that waits for its masks; `logits` [num_draws, vocab] are what it draws from."""

    work: Work
    logits: Tensor


class Sampler:
    """Remembers of each sequence what drawing needs and its tokens can rebuild: counts for the penalties,
    and which ids may come next."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: dict[str, TokenCounts] = {}
        self._rules: dict[str, IdRules] = {}
        self._packed: dict[str, PackedOptions] = {}
        """The options of sequences that have neither of these, and of whose draws nothing is told."""
        self._threads: MaskThreads | None = None  # from the first grammar on
        self._batch: MaskBatch | None = None
        self._postponed: dict[str, Postponed] = {}

    def track(self, sequence: LiveSequence) -> None:
        """Begin with a sequence as it is now; whatever it has generated is taken into account."""
        if IdRules.needed(sequence.params):  # first: this may raise, and nothing is remembered then
            self._rules[sequence.key] = IdRules(sequence, self._vocab_size)
        if sequence.params.has_penalties:
            counts = TokenCounts(self._vocab_size, sequence.tokens, sequence.prompt_len)
            self._counts[sequence.key] = counts
        params = sequence.params
        if not (
            sequence.key in self._rules
            or sequence.key in self._counts
            or params.logit_bias
            or params.logprobs >= 0
        ):
            self._packed[sequence.key] = PackedOptions.of(params)

    def forget(self, key: str) -> None:
        self._counts.pop(key, None)
        self._rules.pop(key, None)
        self._packed.pop(key, None)
        self._postponed.pop(key, None)

    def close_thinking(self, key: str) -> None:
        """Let the thinking of a sequence end here; one that is unknown, or has none, is fine."""
        rules = self._rules.get(key)
        if rules is not None and rules.thinking is not None:
            rules.thinking.close()

    # --- masks ---

    def begin_masks(self, work: Sequence[Work]) -> None:
        """Have the masks computed that these draws need, beside the step that computes their logits."""
        if not self._rules:
            return
        rows = [
            (row, each.drafts)
            for each in work
            if each.num_draws and (row := self._grammar_of(each)) is not None
        ]
        if not rows:
            return
        if self._threads is None:
            self._threads = MaskThreads()
        rows.sort(key=lambda row: not row[0].is_proven)
        quick = []
        for row, drafts in rows:
            job = row.begin(drafts)
            if job is None:
                continue
            if row.is_slow:
                self._threads.begin_slow(job)
            else:
                quick.append(job)
        self._batch = self._threads.begin(quick)

    @property
    def postponed(self) -> frozenset[str]:
        """The keys of sequences whose draws wait for masks."""
        return frozenset(self._postponed)

    @property
    def awaited(self) -> frozenset[str]:
        """Return those of the postponed whose masks are not there."""
        return frozenset(key for key, each in self._postponed.items() if not self._is_ready(each.work))

    @property
    def slow(self) -> frozenset[str]:
        """The keys of sequences whose masks take long: each draft would cost them another."""
        return frozenset(
            key for key, rules in self._rules.items() if rules.grammar is not None and rules.grammar.is_slow
        )

    def draw_postponed(self) -> Iterator[tuple[Work, Kept]]:
        """Draw where masks have come since their step."""
        for key, postponed in list(self._postponed.items()):
            if self._is_ready(postponed.work):
                del self._postponed[key]
                (drawn,) = self.sample([postponed.work], postponed.logits)
                if drawn is not None:
                    yield postponed.work, drawn

    def drop_postponed(self, keys: Iterable[str]) -> None:
        """The logits of these are to be computed again."""
        for key in keys:
            self._postponed.pop(key, None)

    def await_mask(self, timeout_s: float) -> None:
        """Wait until a mask is there that a draw was postponed for, or for a `rouse`."""
        if self._threads is not None:
            self._threads.await_change(timeout_s)

    def rouse(self) -> None:
        """End the wait for a mask, or the next one where there is none. From any thread."""
        if self._threads is not None:
            self._threads.rouse()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()

    def _grammar_of(self, work: Work) -> GrammarRow | None:
        rules = self._rules.get(work.sequence.key)
        return None if rules is None else rules.grammar

    def _is_ready(self, work: Work) -> bool:
        row = self._grammar_of(work)
        return row is None or row.is_ready

    # --- draws ---

    def sample(self, work: Sequence[Work], logits: Tensor) -> Sequence[Kept | None]:
        """`logits` [sum of num_draws, vocab], which is overwritten; what is kept of each work, None for what
        is postponed. Appends nothing to the sequences' tokens: that is the caller's part."""
        if self._batch is not None and self._threads is not None:
            self._threads.wait(self._batch)
            self._batch = None
        if not self._rules:  # no draw waits for a mask
            return self._draw(work, logits)
        outcomes: list[Kept | None] = []
        held: list[GrammarRow] = []
        drawing: list[int] = []
        chosen: list[int] = []
        first = 0
        try:
            for index, each in enumerate(work):
                last = first + each.num_draws
                row = self._grammar_of(each)
                fault = None if row is None else row.fault
                outcomes.append(None if fault is None else Drawn((), (), "error", 0, fault))
                if fault is None and (row is None or self._can_draw(row, held)):
                    drawing.append(index)
                    chosen += range(first, last)
                elif fault is None:
                    self._postponed[each.sequence.key] = Postponed(each, logits[first:last].clone())
                first = last
            drawn = self._draw(
                [work[index] for index in drawing], logits if len(chosen) == first else logits[chosen]
            )
            for index, result in zip(drawing, drawn, strict=True):
                outcomes[index] = result
        finally:
            for row in held:
                row.let_go()
        return outcomes

    def _can_draw(self, row: GrammarRow, held: list[GrammarRow]) -> bool:
        """Return whether its masks are there, and then hold its grammar."""
        if not row.is_ready:
            row.miss()
            return False
        if not row.hold():
            return False
        held.append(row)
        return True

    def _draw(self, work: Sequence[Work], logits: Tensor) -> list[Kept]:
        native = native_sampler()
        sequences = [each.sequence for each in work]
        if native is None or any(map(_num_candidates, sequences)):
            return list(self._draw_rows(work, logits))
        if not work:
            return []
        options = [self._packed.get(each.key) for each in sequences]
        if len(work) < logits.shape[0] or None in options:
            return self._draw_packed(native, work, logits)
        positions = [len(each.tokens) for each in sequences]
        token_ids = native.pick_packed(
            logits.contiguous(), packed_at(cast(list[PackedOptions], options), positions)
        )
        if min(token_ids) < 0:
            return [
                self._keep(each, [None], [None]) if token_id < 0 else token_id
                for each, token_id in zip(work, token_ids, strict=True)
            ]
        return cast(list[Kept], token_ids)

    def _draw_packed(self, native: NativeSampler, work: Sequence[Work], logits: Tensor) -> list[Kept]:
        """A row for each draw, without a record of it where nothing rules over it."""
        draws: list[bytes] = []
        ruled: dict[int, DrawRow] = {}
        packed_of = self._packed.get
        for each in work:
            packed, position = packed_of(each.sequence.key), len(each.sequence.tokens)
            if packed is None:
                rows = self._rows(each)
                ruled.update(enumerate(rows, len(draws)))
                draws += map(packed_row, rows)
            elif each.drafts:
                draws += map(packed.at, range(position, position + each.num_draws))
            else:
                draws.append(packed.at(position))
        token_ids, told = draw_packed(native, logits, draws, ruled)
        if not ruled and len(draws) == len(work) and min(token_ids) >= 0:  # as it mostly is
            return list(token_ids)
        outcomes: list[Kept] = []
        first = 0
        for each in work:
            last = first + each.num_draws
            if last == first + 1 and token_ids[first] >= 0 and first not in ruled:
                outcomes.append(token_ids[first])
            else:
                ids = [None if token_id < 0 else token_id for token_id in token_ids[first:last]]
                outcomes.append(self._keep(each, ids, [told.get(index) for index in range(first, last)]))
            first = last
        return outcomes

    def _draw_rows(self, work: Sequence[Work], logits: Tensor) -> Iterator[Drawn]:
        rows = [row for each in work for row in self._rows(each)]
        token_ids, logprobs = draw(logits, rows) if rows else ([], [])
        most = max((each.sequence.num_candidates for each in work), default=0)
        ranked = rank_draws(logits, rows, token_ids, most) if most else []
        first = 0
        for each in work:
            last = first + each.num_draws
            drawn = self._keep(each, token_ids[first:last], logprobs[first:last])
            if each.sequence.num_candidates:
                drawn = drawn._replace(candidates=tuple(ranked[first : first + len(drawn.token_ids)]))
            yield drawn
            first = last

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
        token_id = ids[0]
        if not (work.drafts or self._rules or self._counts or token_id is None):  # as most are
            reason = self._finish_reason(sequence, token_id, len(sequence.tokens) + 1)
            return Drawn((token_id,), () if logprobs[0] is None else (logprobs[0],), reason, 0)
        row = self._grammar_of(work)
        kept: list[int] = []
        accepted, reason = 0, None
        fault: PenstockError | None = None
        for token_id, draft in zip(ids, (*work.drafts, None), strict=True):
            if token_id is None:
                reason = "error"
                if row is not None and row.state.failed_at == len(kept):
                    fault = row.state.too_complex()
                break
            kept.append(token_id)
            reason = self._finish_reason(sequence, token_id, len(sequence.tokens) + len(kept))
            accepted += token_id == draft
            if reason is not None or token_id != draft or self._holds_otherwise(sequence.key, row):
                break
        if row is not None:
            row.end_draw()
        if sequence.key in self._counts:
            self._counts[sequence.key].add(kept)
        told = tuple([logprob for logprob in logprobs[: len(kept)] if logprob is not None])
        return Drawn(tuple(kept), told, reason, accepted, fault)

    def _holds_otherwise(self, key: str, row: GrammarRow | None) -> bool:
        """Return whether a thinking began or ended with the last token, so that the draws behind it do not
        know which grammar holds them."""
        rules = self._rules.get(key)
        return rules is not None and rules.thinking is not None and rules.grammar is not row

    def _finish_reason(self, sequence: LiveSequence, token_id: int, num_tokens: int) -> str | None:
        rules = self._rules.get(sequence.key)
        if token_id in sequence.end_ids if rules is None else rules.ends(token_id):
            return "stop"
        return "length" if num_tokens >= sequence.end_len else None
