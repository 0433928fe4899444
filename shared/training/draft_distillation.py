"""`penstock distill`: a draft model for one target, from its own answers, in so many minutes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from shared.engine.loading.config import load_model_config
from shared.files.atomic_write import write_file
from shared.training.acceptance import accept_draft_model, accept_ngrams
from shared.training.checkpoint import load_checkpoint, save_checkpoint
from shared.training.distillation import Distillation, DistillOptions, Tell, generated_tokens
from shared.training.draft_shape import plan_draft
from shared.training.draft_start import start_draft
from shared.training.draft_trainer import (
    DraftTrainer,
    TaughtBatches,
    calibrate_draft,
)
from shared.training.llama_files import copy_tokenizer, write_model
from shared.training.loop import TrainingLoop
from shared.training.model_card import CardFacts, MeasuredAcceptance, draft_card, pays_somewhere, verdicts
from shared.training.optimizer import Optimizer
from shared.training.step_times import measure_steps
from shared.training.taught_rows import DRAFT_LESSONS, TaughtRow

TIMED_PROMPT_TOKENS = 64


def distil_draft(options: DistillOptions, tell: Tell) -> bool:
    """Answer, train and measure; return whether the draft pays anywhere. Raises InvalidRequest and NotFound
    for what cannot be."""
    run = DraftRun(options, tell)
    rounds, answering_s = run.taught.answer()
    rows = list(chain.from_iterable(rounds))
    trained_s = run.train(rows)
    return run.measure(rows, answering_s + trained_s)


class DraftRun:
    """One draft in the making."""

    def __init__(self, options: DistillOptions, tell: Tell) -> None:
        self._options = options
        self._tell = tell
        self._target = load_model_config(options.model)
        self._plan = plan_draft(self._target, options.layers, options.hidden)
        self.taught = Distillation(options, self._target, repr(self._plan), DRAFT_LESSONS, tell)

    def train(self, rows: list[TaughtRow]) -> float:
        """The seconds spent, in all runs. OUT has the draft when this ends."""
        torch.manual_seed(self._options.seed)
        in_float32 = load_model_config(self._options.model, "float32")
        draft = start_draft(self._options.model, in_float32, self._plan)
        optimizer = Optimizer.of_model(draft)
        work, budget_s = self.taught.work, self.taught.training_s
        progress = load_checkpoint(work, draft, optimizer)
        loop = TrainingLoop(
            progress, max(budget_s, 1e-6), lambda: save_checkpoint(work, draft, optimizer, progress)
        )
        if progress.elapsed_s < budget_s:
            batches = TaughtBatches(rows, self._options.seed + progress.step)
            if not progress.step:
                calibrate_draft(draft, next(batches))
            loop.run("draft", batches, DraftTrainer(draft, optimizer, loop).take_step)
        write_model(draft, self._options.out, self._target.bos_token_id, self._target.eos_token_ids)
        copy_tokenizer(self._options.model, self.taught.engine(), self._options.out)
        return progress.elapsed_s

    def measure(self, rows: Sequence[TaughtRow], trained_s: float) -> bool:
        """Write the card; return whether the draft pays anywhere."""
        draft = self.taught.load(self._options.out)
        checks = self.taught.checks()
        measured = [
            MeasuredAcceptance(
                each.prompts,
                each.temperature,
                accept_draft_model(draft, each.answers),
                accept_ngrams(each.answers),
            )
            for each in self.taught.held_back(checks)
        ]
        times = measure_steps(self.taught.engine(), draft, checks[0][1][0][:TIMED_PROMPT_TOKENS])
        facts = CardFacts(
            target=self._options.model.name,
            plan=self._plan,
            threads=self._options.threads,
            quantization=self._options.quantization,
            trained_minutes=trained_s / 60,
            taught_tokens=generated_tokens(rows),
            measured=measured,
            times=times,
        )
        write_file(self._options.out / "README.md", draft_card(facts).encode())
        for each in measured:
            for sentence in verdicts(each, times):
                self._tell(sentence)
        return any(pays_somewhere(each, times) for each in measured)
