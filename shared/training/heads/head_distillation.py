"""`penstock distill --kind head`: a draft head for one target, from its own answers, in so many minutes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.config import load_model_config
from shared.files.atomic_write import write_file
from shared.training.acceptance import accept_ngrams
from shared.training.checkpoint import load_checkpoint, save_checkpoint
from shared.training.distillation import Distillation, DistillOptions, Tell
from shared.training.heads.draft_head import DraftHead, start_head
from shared.training.heads.head_acceptance import accept_head
from shared.training.heads.head_card import HeadFacts, MeasuredHead, head_card, head_pays, head_verdict
from shared.training.heads.head_files import (
    check_head,
    read_known_ids,
    round_as_written,
    take_parameters,
    write_head,
)
from shared.training.heads.head_shape import plan_head
from shared.training.heads.head_trainer import HeadTrainer, TappedBatches, TargetVocabulary
from shared.training.heads.target_taps import TappedRows, frequent_ids
from shared.training.llama_files import load_model
from shared.training.loop import TrainingLoop
from shared.training.optimizer import Optimizer
from shared.training.precision import product_type
from shared.training.taught_rows import Lessons

HEAD_ANSWER_TOKENS = 256
"""Longer answers than a draft model learns from: a head learns from what is generated alone."""


def distil_head(options: DistillOptions, tell: Tell) -> bool:
    """Answer, train and measure; return whether the head pays anywhere. Raises InvalidRequest and
    NotFound for what cannot be."""
    run = HeadRun(options, tell)
    rounds, answering_s = run.taught.answer()
    files = [TappedRows(run.taught.answers_file(number)) for number in range(len(rounds))]
    head, trained_s = run.train(files)
    return run.measure(head, files, answering_s + trained_s)


class HeadRun:
    """One head in the making."""

    def __init__(self, options: DistillOptions, tell: Tell) -> None:
        self._options = options
        self._tell = tell
        self._config = load_model_config(options.model)
        self._shape = plan_head(self._config, options.layers, options.hidden)
        self._begin = options.begin_with
        if self._begin is not None:
            check_head(self._begin, self._shape, self._config, checkpoint_digest(options.model))
        self._target = load_model(options.model).to(product_type()).requires_grad_(False)
        lessons = Lessons(HEAD_ANSWER_TOKENS, tap_layers=self._shape.tap_layers)
        self.taught = Distillation(options, self._config, repr(self._shape), lessons, tell)

    def train(self, files: list[TappedRows]) -> tuple[DraftHead, float]:
        """Return the head and the seconds spent, in all runs; OUT has it here and at every checkpoint."""
        torch.manual_seed(self._options.seed)
        ids = self._known_ids(files)
        head = start_head(self._shape, ids, self._target)
        if self._begin is not None:
            take_parameters(head, self._begin)
        optimizer = Optimizer.of_head(head)
        work, budget_s = self.taught.work, self.taught.training_s
        progress = load_checkpoint(work, head, optimizer)

        def save() -> None:
            self._write(head)  # first: a run that goes on has the tokens of the head from it
            save_checkpoint(work, head, optimizer, progress)

        loop = TrainingLoop(progress, max(budget_s, 1e-6), save)
        if progress.elapsed_s < budget_s:
            batches = TappedBatches(files, self._options.seed + progress.step)
            trainer = HeadTrainer(head, TargetVocabulary(self._target, ids), optimizer, loop)
            loop.run("head", batches, trainer.take_step)
        self._write(head)
        round_as_written(head)
        return head, progress.elapsed_s

    def measure(self, head: DraftHead, files: Sequence[TappedRows], trained_s: float) -> bool:
        """Write the card; return whether the head pays anywhere."""
        teacher = TargetVocabulary(self._target, head.ids)
        measured = [
            MeasuredHead(
                each.prompts,
                each.temperature,
                accept_head(head, self._target, teacher, each.answers),
                accept_ngrams(each.answers),
            )
            for each in self.taught.held_back(self.taught.checks())
        ]
        tokens = torch.cat([file.tokens for file in files])
        facts = HeadFacts(
            target=self._options.model.name,
            shape=self._shape,
            known_share=torch.isin(tokens, head.ids).float().mean().item(),
            minutes=trained_s / 60,
            taught_tokens=len(tokens),
            measured=measured,
        )
        write_file(self._options.out / "README.md", head_card(facts).encode())
        for each in measured:
            self._tell(head_verdict(each))
        return any(map(head_pays, measured))

    def _write(self, head: DraftHead) -> None:
        write_head(head, self._options.out, self.taught.digest)

    def _known_ids(self, files: Sequence[TappedRows]) -> Tensor:
        """Return the tokens that the head knows, chosen once: what it has learned is about these."""
        for folder in (self._options.out, self._begin):
            if folder is not None and (known := read_known_ids(folder)) is not None:
                return known
        config = self._config
        special = [
            token_id for token_id in (config.bos_token_id, *config.eos_token_ids) if token_id is not None
        ]
        return frequent_ids(files, self._shape.draft_vocab_size, config.vocab_size, special)
