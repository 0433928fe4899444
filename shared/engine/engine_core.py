"""One step: schedule, compute logits, sample, and what becomes of each sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from shared.engine.cost_model import CostModel
from shared.engine.model_runner import ModelInput, ModelRunner
from shared.engine.results import Computed, PromptScores, StepResult, TokenOutput
from shared.engine.sampling.draw import token_logprobs
from shared.engine.sampling.sampler import Drawn, Sampler
from shared.engine.scheduling.scheduler import Reuse, Scheduler, SchedulerOutput, Work
from shared.engine.sequence import LiveSequence, SequenceStatus
from shared.seams.clock import SYSTEM_CLOCK


class EngineCore:
    """Runs steps over the scheduler's sequences, and teaches the cost model what they took."""

    def __init__(
        self,
        model_runner: ModelRunner,
        scheduler: Scheduler,
        sampler: Sampler,
        cost: CostModel,
        *,
        num_layers: int,
    ) -> None:
        self._model_runner = model_runner
        self._scheduler = scheduler
        self._sampler = sampler
        self._cost = cost
        self._num_layers = num_layers

    def run_step(self) -> StepResult:
        """One iteration over all live sequences."""
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        outputs = [self._accept(work, drawn) for work, drawn in self._sampler.draw_postponed()]
        waiting = self._sampler.postponed
        scheduled = self._scheduler.schedule(waiting, self._sampler.slow)
        self._sampler.drop_postponed(scheduled.preempted_keys)
        self._announce(scheduled.reused)
        scheduled_ns = SYSTEM_CLOCK.monotonic_ns()
        model_ns = 0
        prompt_scores: tuple[PromptScores, ...] = ()
        if scheduled.work:
            self._sampler.begin_masks(scheduled.work)
            logits = self._model_runner.compute_logits([_model_input(work) for work in scheduled.work])
            model_ns = SYSTEM_CLOCK.monotonic_ns() - scheduled_ns
            if any(work.is_prefill and work.scored for work in scheduled.work):
                prompt_scores, logits = _score_prompts(scheduled.work, logits)
            outputs += self._finish(scheduled, logits)
        step_us = (SYSTEM_CLOCK.monotonic_ns() - began_ns) // 1000
        self._cost.observe(scheduled.features, step_us - scheduled.drafting_us)
        prefill = [work for work in scheduled.work if work.is_prefill]
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
        drawn = iter(self._sampler.sample(drawing, logits))
        last_rows: list[tuple[LiveSequence, int]] = []  # from which their last tokens were drawn
        end = 0
        for work in scheduled.work:
            end += work.num_logits
            if not work.num_draws:
                self._scheduler.advance(work, work.num_tokens)
            elif (kept := next(drawn)) is not None:
                yield self._accept(work, kept)
                if work.sequence.status is SequenceStatus.ACTIVE and kept.finish_reason is None:
                    last_rows.append((work.sequence, end - work.num_draws + len(kept.token_ids) - 1))
        heads, taps = self._scheduler.heads, self._model_runner.taps
        if heads is not None and taps is not None:
            heads.keep(last_rows, taps.rows.flatten(1).numpy())

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
        if sequence.pinned and (drawn.finish_reason is not None or sequence.draw_limit <= 0):
            sequence.status = SequenceStatus.HELD
        elif drawn.finish_reason is not None:
            self._sampler.forget(sequence.key)
            self._scheduler.remove_sequence(sequence.key)
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


def _model_input(work: Work) -> ModelInput:
    sequence = work.sequence
    return ModelInput(
        work.token_ids,
        work.start,
        [table.blocks for table in sequence.tables],
        work.num_logits,
        sequence.on_layer,
        sequence.adapter,
    )


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
