"""Train the demo target: `python -m shared.demo.train --books DIR --out DIR --work-dir DIR --minutes M`.

The curriculum: repeated random spans until copying works, then one fact per question, then many facts among
prose, then longer contexts; books all along. A stage ends when its skill is measured, or at its time cap.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from shared.demo.batches import ExamplePacker, Prefetch, TrainingBatch, book_batch, copy_batch, joined
from shared.demo.checkpoint import TrainingProgress, export_model, load_checkpoint, save_checkpoint
from shared.demo.copy_circuit import seed_copy_circuit
from shared.demo.invent import Inventor
from shared.demo.llama import Llama, LlamaShape
from shared.demo.loop import StepFigures, TrainingLoop
from shared.demo.optimizer import Optimizer, rate_factor
from shared.demo.prepare import Material, prepare

TARGET = LlamaShape(intermediate_size=384, rope_theta=100_000.0)
MIN_STAGE_STEPS = 60
TASK_WEIGHT = 2.0
COPY_ROWS = 1
GRADIENT_LIMIT = 1.0


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """One part of the curriculum: what the task half of a batch holds, and when the part is over."""

    name: str
    max_facts: int
    max_fillers: int
    rows: int
    length_tokens: int
    passing_score: float
    ends_at_progress: float


# Two half batches a step, of rows x length tokens each.
# The score is token accuracy of copies, then the share of whole answers.
STAGES = (
    TrainingStage("copy", 0, 0, rows=8, length_tokens=512, passing_score=0.85, ends_at_progress=0.08),
    TrainingStage("one", 1, 1, rows=8, length_tokens=512, passing_score=0.70, ends_at_progress=0.25),
    TrainingStage("few", 4, 4, rows=8, length_tokens=512, passing_score=0.70, ends_at_progress=0.45),
    TrainingStage("many", 8, 10, rows=8, length_tokens=512, passing_score=2.0, ends_at_progress=0.87),
    TrainingStage("long", 10, 16, rows=4, length_tokens=1024, passing_score=2.0, ends_at_progress=2.0),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Loss of one half batch, and the shares of right tokens and of wholly right answers."""

    loss: float
    token_accuracy: float
    exact: float


def batch_maker(stage: TrainingStage, material: Material, seed: int) -> Callable[[], Sequence[TrainingBatch]]:
    """A function that makes the (book, task) half batches of a step of `stage`."""
    random = np.random.default_rng(seed)
    inventor = Inventor.seeded(seed, material.training_vocabulary)
    packer = ExamplePacker(material.tokenizer, inventor, stage.max_facts, stage.max_fillers)
    vocabulary = material.tokenizer.get_vocab_size()
    rows, length = stage.rows, stage.length_tokens

    def make() -> Sequence[TrainingBatch]:
        books = book_batch(material.training_tokens, rows, length, random)
        if stage.max_facts == 0:
            return books, copy_batch(vocabulary, rows, length, random)
        return books, joined(
            packer.batch(rows - COPY_ROWS, length), copy_batch(vocabulary, COPY_ROWS, length, random)
        )

    return make


def learn(model: Llama, decoder: Callable[[Tensor], Tensor], batch: TrainingBatch, weight: float) -> Measured:
    """Add the gradients of one half batch."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = decoder(batch.ids)  # [B, T, D]
        logits = model.head(hidden.reshape(-1, hidden.shape[-1])[batch.positions])  # [N, V]
    losses = functional.cross_entropy(logits.float(), batch.targets, reduction="none")
    loss = (losses * batch.weights).sum() / batch.weights.sum()
    (weight * loss).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    return measure_batch(loss.item(), logits.detach(), batch)


def measure_batch(loss: float, logits: Tensor, batch: TrainingBatch) -> Measured:
    """Teacher-forced accuracy; an answer whose argmaxes are all right is what greedy decoding would give."""
    right = logits.argmax(-1) == batch.targets  # [N]
    judged = batch.answers >= 0
    if not bool(judged.any()):
        return Measured(loss, right.float().mean().item(), 0.0)
    count = int(batch.answers.max()) + 1
    wrong = torch.zeros(count).index_add_(0, batch.answers[judged], (~right[judged]).float())
    return Measured(loss, right[judged].float().mean().item(), (wrong == 0).float().mean().item())


class Trainer:
    """One training run that ends by the clock and can be resumed."""

    def __init__(self, material: Material, work: Path, budget_s: float, compiled: bool) -> None:
        torch.manual_seed(0)
        self._material = material
        self._work = work
        self.model = Llama(TARGET)
        seed_copy_circuit(self.model)
        self._decoder: Callable[[Tensor], Tensor] = (
            torch.compile(self.model.model, dynamic=False) if compiled else self.model.model
        )
        self._optimizer = Optimizer.of_model(self.model)
        self.progress: TrainingProgress = load_checkpoint(work, self.model, self._optimizer)
        self._loop = TrainingLoop(self.progress, budget_s, self._save)

    def run(self) -> None:
        """Train until the budget is spent, stage by stage."""
        while self._loop.share < 1.0:
            self._run_stage(STAGES[self.progress.stage])

    def _run_stage(self, stage: TrainingStage) -> None:
        print(f"stage {stage.name} at step {self.progress.step}", flush=True)

        def take_step(batches: Sequence[TrainingBatch]) -> StepFigures:
            books, task = batches
            from_books = learn(self.model, self._decoder, books, 1.0)
            from_task = learn(self.model, self._decoder, task, TASK_WEIGHT)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_LIMIT)
            self._optimizer.step(rate_factor(self.progress.step, self._loop.share))
            score = from_task.token_accuracy if stage.max_facts == 0 else from_task.exact
            figures = {"books": from_books.loss, "task": from_task.loss, "score": score}
            return StepFigures(books.ids.numel() + task.ids.numel(), figures)

        def is_over(steps: int, figures: Mapping[str, float]) -> bool:
            passed = steps >= MIN_STAGE_STEPS and figures["score"] >= stage.passing_score
            return passed or self._loop.share >= stage.ends_at_progress

        with Prefetch(batch_maker(stage, self._material, seed=self.progress.step + 1)) as batches:
            self._loop.run(stage.name, batches, take_step, is_over)
        self.progress.stage = min(self.progress.stage + 1, len(STAGES) - 1)
        self._save()

    def _save(self) -> None:
        save_checkpoint(self._work, self.model, self._optimizer, self.progress)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, required=True, help="folder of Markdown books")
    parser.add_argument("--out", type=Path, required=True, help="where the model folder is written")
    parser.add_argument(
        "--work-dir", type=Path, required=True, help="token arrays and checkpoints; resumes from here"
    )
    parser.add_argument("--minutes", type=float, default=85.0, help="training time, over all resumes")
    parser.add_argument("--compile", action="store_true", help="compile the decoder (needs a C++ compiler)")
    options = parser.parse_args()
    material = prepare(options.books, options.work_dir)
    trainer = Trainer(material, options.work_dir / "target", options.minutes * 60, options.compile)
    trainer.run()
    export_model(trainer.model, options.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (options.out / name).write_bytes((options.work_dir / "tokenizer" / name).read_bytes())
    print(f"wrote {options.out}", flush=True)


if __name__ == "__main__":
    main()
