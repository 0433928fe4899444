"""One step: plan, forward pass, draw, and what becomes of each sequence."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torch import Tensor

from shared.engine.batch import Model
from shared.engine.cost_model import CostModel
from shared.engine.results import Computed, StepResult, TokenOutput
from shared.engine.runner import RunItem, run
from shared.engine.sampling.drawing import Drawer, Drawn
from shared.engine.scheduling.draft_choice import judge_drafts
from shared.engine.scheduling.scheduler import Plan, Scheduler, Work
from shared.engine.sequence import Phase


class Steps:
    """Takes steps over the scheduler's sequences, and teaches the cost model what they took."""

    def __init__(self, model: Model, scheduler: Scheduler, drawer: Drawer, cost: CostModel) -> None:
        self._model = model
        self._scheduler = scheduler
        self._drawer = drawer
        self._cost = cost

    def take(self) -> StepResult:
        """One iteration over all live sequences."""
        began_ns = time.perf_counter_ns()
        plan = self._scheduler.plan()
        planned_ns = time.perf_counter_ns()
        model_ns = 0
        outputs: tuple[TokenOutput, ...] = ()
        if plan.work:
            logits = run(self._model, [_run_item(work) for work in plan.work])
            model_ns = time.perf_counter_ns() - planned_ns
            outputs = tuple(self._finish(plan, logits))
        step_us = (time.perf_counter_ns() - began_ns) // 1000
        self._cost.observe(plan.features, step_us)
        prefill = [work for work in plan.work if work.is_prefill]
        return StepResult(
            outputs=outputs,
            computed=tuple(Computed(work.sequence.key, work.start, work.end) for work in prefill),
            batch_tokens=plan.features.tokens,
            num_decode=len(plan.work) - len(prefill),
            num_prefill_tokens=sum(work.num_tokens for work in prefill),
            preempted_keys=plan.preempted_keys,
            step_us=step_us,
            model_us=model_ns // 1000,
        )

    def _finish(self, plan: Plan, logits: Tensor) -> Iterator[TokenOutput]:
        """Draw where a sequence's last token was computed, take the rest as progress."""
        drawing = [work for work in plan.work if work.num_draws]
        drawn = iter(self._drawer.draw(drawing, logits))
        for work in plan.work:
            if work.num_draws:
                yield self._accept(work, next(drawn))
            else:
                self._scheduler.advance(work, work.num_tokens)

    def _accept(self, work: Work, drawn: Drawn) -> TokenOutput:
        sequence = work.sequence
        position = len(sequence.tokens)
        sequence.tokens += drawn.token_ids
        judge_drafts(sequence, len(work.drafts), drawn.accepted_drafts)
        sequence.prefilling = False
        self._scheduler.advance(work, work.num_tokens + len(drawn.token_ids) - 1)
        if sequence.pinned and (drawn.finish_reason is not None or sequence.draw_limit <= 0):
            sequence.phase = Phase.HELD
        elif drawn.finish_reason is not None:
            self._drawer.forget(sequence.key)
            self._scheduler.remove(sequence.key)
        return TokenOutput(
            sequence.key,
            position,
            drawn.token_ids,
            drawn.logprobs,
            drawn.finish_reason,
            drawn.accepted_drafts,
            len(work.drafts),
        )


def _run_item(work: Work) -> RunItem:
    return RunItem(work.token_ids, work.start, work.sequence.blocks, work.num_draws, work.sequence.on_layer)
