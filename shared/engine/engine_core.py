"""One step: schedule, compute logits, sample, and what becomes of each sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from shared.engine.cost_model import CostModel
from shared.engine.memory.kv_pool import BLOCK_TOKENS
from shared.engine.model_runner import ModelColumns, ModelRunner
from shared.engine.results import Computed, PromptScores, StepResult, TokenOutput
from shared.engine.sampling.draw import token_logprobs
from shared.engine.sampling.sampler import Drawn, Kept, Sampler
from shared.engine.scheduling.scheduler import Reuse, Scheduler, SchedulerOutput, Work
from shared.engine.sequence import LiveSequence, SequenceStatus
from shared.records import maker_of
from shared.seams.clock import SYSTEM_CLOCK


class EngineCore:
    """Runs steps over the scheduler's sequences, and teaches the cost model what they took.

    `computes_here`: the thread that runs a step computes as long as it lasts, unless it is held up.
    """

    def __init__(
        self,
        model_runner: ModelRunner,
        scheduler: Scheduler,
        sampler: Sampler,
        cost: CostModel,
        *,
        num_layers: int,
        computes_here: bool,
    ) -> None:
        self._model_runner = model_runner
        self._scheduler = scheduler
        self._sampler = sampler
        self._cost = cost
        self._num_layers = num_layers
        self._computes_here = computes_here

    def run_step(self) -> StepResult:
        """One iteration over all live sequences."""
        began_ns, began_cpu_ns = SYSTEM_CLOCK.monotonic_ns(), SYSTEM_CLOCK.thread_cpu_ns()
        outputs = [self._take(work, outcome) for work, outcome in self._sampler.draw_postponed()]
        waiting = self._sampler.postponed
        scheduled = self._scheduler.schedule(waiting, self._sampler.slow)
        self._sampler.drop_postponed(scheduled.preempted_keys)
        self._announce(scheduled.reused)
        scheduled_ns = SYSTEM_CLOCK.monotonic_ns()
        model_ns = 0
        prompt_scores: tuple[PromptScores, ...] = ()
        if scheduled.work:
            self._sampler.begin_masks(scheduled.work)
            logits = self._model_runner.compute_columns(_model_columns(scheduled))
            model_ns = SYSTEM_CLOCK.monotonic_ns() - scheduled_ns
            if any(work.is_prefill and work.scored for work in scheduled.work[scheduled.num_plain :]):
                prompt_scores, logits = _score_prompts(scheduled.work, logits)
            outputs += self._finish(scheduled, logits)
        step_us = (SYSTEM_CLOCK.monotonic_ns() - began_ns) // 1000
        drafting_us = scheduled.drafting_us
        computing_us = 0.0
        if self._computes_here:
            computing_us = (SYSTEM_CLOCK.thread_cpu_ns() - began_cpu_ns) / 1000 - drafting_us
        self._cost.observe(scheduled.features, step_us - drafting_us, computing_us)
        prefill = [work for work in scheduled.work[scheduled.num_plain :] if work.is_prefill]
        if scheduled.draft_prices is not None and not prefill:
            took_us = computing_us or step_us - drafting_us
            self._scheduler.row_costs.observe(scheduled.features, scheduled.draft_prices, took_us)
        return StepResult(
            outputs=tuple(outputs),
            prompt_scores=prompt_scores,
            computed=tuple(Computed(work.sequence.key, work.start, work.end) for work in prefill),
            reused=tuple(Computed(reuse.sequence.key, reuse.start, reuse.end) for reuse in scheduled.reused),
            batch_tokens=scheduled.features.tokens,
            num_decode=len(scheduled.work) - len(prefill),
            num_prefill_tokens=sum(work.num_tokens for work in prefill),
            preempted_keys=scheduled.preempted_keys,
            step_us=step_us,
            model_us=model_ns // 1000,
            mask_waits=len(self._sampler.postponed - waiting),
            num_resting=scheduled.num_resting,
            draft_prices=scheduled.draft_prices,
        )

    def _announce(self, reused: Sequence[Reuse]) -> None:
        """Tell at once those that wait for KV which is in all layers already."""
        for sequence, start, end in reused:
            if sequence.on_layer is not None:
                for layer in range(self._num_layers):
                    sequence.on_layer(layer, start, end)

    def _finish(self, scheduled: SchedulerOutput, logits: Tensor) -> Iterator[TokenOutput]:
        """Draw where a sequence's last token was computed, take the rest as progress."""
        drawing = [work for work in scheduled.work if work.num_draws]
        drawn = self._sampler.sample(drawing, logits)
        num_plain = scheduled.num_plain if self._scheduler.advances_plainly else 0
        yield from self._accept_plain(scheduled.work[:num_plain], drawn[:num_plain])
        outcomes = iter(drawn[num_plain:])
        heads, taps = self._scheduler.heads, self._model_runner.taps
        last_rows: list[tuple[LiveSequence, int]] = []  # from which their last tokens were drawn
        end = 0
        for work in scheduled.work[num_plain:]:
            if not work.num_draws:
                self._scheduler.advance(work, work.num_tokens)
            elif (outcome := next(outcomes)) is not None:
                output = self._take(work, outcome)
                goes_on = work.sequence.status is SequenceStatus.ACTIVE and output.finish_reason is None
                if heads is not None and goes_on:
                    first = end + work.num_logits - work.num_draws
                    last_rows.append((work.sequence, first + len(output.token_ids) - 1))
                yield output
            if heads is not None:
                end += work.num_logits
        if heads is not None and taps is not None:
            heads.keep(last_rows, taps.rows.flatten(1).numpy())

    def _take(self, work: Work, outcome: Kept) -> TokenOutput:
        return self._accept(work, outcome) if isinstance(outcome, Drawn) else self._accept_one(work, outcome)

    def _accept_one(self, work: Work, token_id: int) -> TokenOutput:
        """`_accept` of what most steps bring a sequence: one token, which nobody guessed."""
        sequence = work.sequence
        tokens = sequence.tokens
        position = len(tokens)
        tokens.append(token_id)
        sequence.prefilling = False
        self._scheduler.advance(work, work.num_tokens)
        return self._output(sequence, position, token_id)

    def _accept_plain(self, rows: Sequence[Work], outcomes: Sequence[Kept | None]) -> list[TokenOutput]:
        """`_take` of plain rows, in one loop: what nearly all rows of nearly all steps are."""
        outputs = []
        commit = self._scheduler.commit
        for work, token_id in zip(rows, outcomes, strict=True):
            sequence = work[0]
            if token_id.__class__ is not int or sequence.inter_token_us != math.inf:
                if token_id is not None:
                    outputs.append(self._take(work, token_id))
                continue
            position = work[1] + 1
            sequence.tokens.append(token_id)
            sequence.num_computed = position
            if position % BLOCK_TOKENS == 0:
                commit(sequence)
            sequence.due_us = math.inf
            outputs.append(self._output(sequence, position, token_id))
        return outputs

    def _output(self, sequence: LiveSequence, position: int, token_id: int) -> TokenOutput:
        """Return the output of one token, which nobody guessed; it may be the sequence's last."""
        reason = None
        if token_id in sequence.end_ids:
            reason = "stop"
        elif position + 1 >= sequence.end_len:
            reason = "length"
        if reason is not None or sequence.hold_len is not None:
            self._settle(sequence, reason)
        return _output_of((sequence.key, position, (token_id,), (), reason, 0, 0, False, False, None, ()))

    def _settle(self, sequence: LiveSequence, finish_reason: str | None) -> None:
        """It may have drawn its last token, or the last one that it was asked for."""
        if sequence.pinned and (finish_reason is not None or sequence.draw_limit <= 0):
            sequence.status = SequenceStatus.HELD
        elif finish_reason is not None:
            self._sampler.forget(sequence.key)
            self._scheduler.remove_sequence(sequence.key)

    def _accept(self, work: Work, drawn: Drawn) -> TokenOutput:
        sequence = work.sequence
        position = len(sequence.tokens)
        sequence.tokens += drawn.token_ids
        if work.match_tokens:
            self._scheduler.lookups.judge(
                sequence.key, work.match_tokens, len(work.drafts), drawn.accepted_drafts
            )
        elif work.confidences and self._scheduler.heads is not None:
            self._scheduler.heads.judge(sequence.key, work.confidences, drawn.accepted_drafts)
        elif work.drafts:
            self._scheduler.offered.judge(sequence.key, len(work.drafts), drawn.accepted_drafts)
        sequence.prefilling = False
        self._scheduler.advance(work, work.num_tokens + len(drawn.token_ids) - 1)
        self._settle(sequence, drawn.finish_reason)
        return TokenOutput(
            sequence.key,
            position,
            drawn.token_ids,
            drawn.logprobs,
            drawn.finish_reason,
            drawn.accepted_drafts,
            len(work.drafts),
            looked_up=work.match_tokens > 0,
            from_head=bool(work.confidences),
            fault=drawn.fault,
            candidates=drawn.candidates,
        )


_output_of = maker_of(TokenOutput)


def _model_columns(scheduled: SchedulerOutput) -> ModelColumns:
    plain = [work[0] for work in scheduled.work[: scheduled.num_plain]]
    columns = ModelColumns(
        [sequence.tokens[-1:] for sequence in plain],  # of which each is computed but for its last one
        [sequence.num_computed for sequence in plain],
        [_blocks_of(sequence) for sequence in plain],
        [1] * len(plain),
        [sequence.on_layer for sequence in plain],
        [sequence.adapter for sequence in plain],
    )
    ids, starts, tables, num_logits, listeners, adapters = columns
    for work in scheduled.work[scheduled.num_plain :]:
        sequence, start, num_tokens, drafts, is_prefill, num_draws, _, _ = work
        if is_prefill or drafts:
            ids.append(work.token_ids)
            num_logits.append(work.num_logits)
        else:
            ids.append(sequence.tokens[start : start + num_tokens])
            num_logits.append(num_draws)
        starts.append(start)
        tables.append(_blocks_of(sequence))
        listeners.append(sequence.on_layer)
        adapters.append(sequence.adapter)
    return columns


def _blocks_of(sequence: LiveSequence) -> Sequence[Sequence[int]]:
    tables = sequence.tables
    return (tables[0].blocks,) if len(tables) == 1 else [table.blocks for table in tables]


def _score_prompts(work: Sequence[Work], logits: Tensor) -> tuple[tuple[PromptScores, ...], Tensor]:
    """The log-probabilities that are wanted of prompts, and the rows of `logits` that are left to draw from.

    Before any draw: that overwrites the logits.
    """
    scores: list[PromptScores] = []
    drawn: list[int] = []
    first = 0
    for each in work:
        sequence, scored, num_logits = each.sequence, each.scored, each.num_logits
        if scored:
            tokens = sequence.tokens[scored.start : scored.stop]
            rows = logits[first : first + len(scored)]
            logprobs = token_logprobs(rows, tokens, sequence.params.prompt_logprobs)
            scores.append(PromptScores(sequence.key, scored.start, logprobs))
            sequence.num_scored = scored.stop
        first += num_logits
        drawn += range(first - each.num_draws, first)
    return tuple(scores), logits[drawn]
