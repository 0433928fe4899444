"""`penstock distill`: a draft for one target, from its own answers, in so many minutes; goes on where it was
ended.

OUT becomes the draft's directory. OUT/.distill holds what a run goes on from: what it was asked for, the
target's answers, the last checkpoint. Killed at any moment, it loses at most the answers in the making and
the steps since the checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine import LLM
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.config import load_model_config
from shared.errors import InvalidRequest
from shared.files.atomic_write import write_file
from shared.files.private_folder import make_private_folder
from shared.text.tokenizer import TextTokenizer
from shared.training.acceptance import LONGEST_DRAFT, accept_draft_model, accept_ngrams, target_answers
from shared.training.checkpoint import load_checkpoint, save_checkpoint
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
from shared.training.prompts import MAX_PROMPT_TOKENS, ask_itself, read_prompts, split_held_out
from shared.training.step_times import measure_steps
from shared.training.taught_rows import MAX_ANSWER_TOKENS, TaughtRow, answer_prompts, load_rows, save_rows

WORK_FOLDER = ".distill"
ANSWERING_SHARE = 0.4
"""The share of the minutes in which the target answers; the rest is for training."""
PROMPTS_PER_ROUND = 32
MEASURED_PROMPTS = 32
MEASURED_TOKENS = 96
TIMED_PROMPT_TOKENS = 64
LEAST_PROMPT_TOKENS = 16
LONGEST_TOKENS = 1024
"""The most tokens of prompt and answer, in the engines that answer and measure."""
HELD_OUT_SEED = 1 << 40
"""Questions of the target's own that it is measured with are drawn with seeds from here on."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """`layers` and `hidden` 0: as `plan_draft` chooses. `data` None: questions that the target asks itself;
    `check` are prompts to measure with, None: those of `data` that are held back. `quantization` is that in
    which both are to be served."""

    model: Path
    out: Path
    minutes: float
    layers: int = 0
    hidden: int = 0
    data: Path | None = None
    check: tuple[Path, ...] = ()
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    quantization: str = "none"
    threads: int = 1
    seed: int = 0


def distil_draft(options: DistillOptions, tell: Tell) -> bool:
    """Answer, train and measure; return whether the draft pays anywhere. Raises InvalidRequest and NotFound
    for what cannot be."""
    run = DistillRun(options, tell)
    rows, answering_s = run.answer()
    trained_s = run.train(rows)
    return run.measure(rows, answering_s + trained_s)


class DistillRun:
    """One draft in the making."""

    def __init__(self, options: DistillOptions, tell: Tell) -> None:
        self._options = options
        self._tell = tell
        self._target = load_model_config(options.model)
        self._plan = plan_draft(self._target, options.layers, options.hidden)
        self._most_tokens = _prompt_room(self._target.max_position_embeddings)
        self._tokenizer = TextTokenizer.load(options.model)
        found = None if options.data is None else self._read(options.data)
        self._prompts, self._held_out = ([], []) if found is None else split_held_out(found)
        self._checks = [(path.stem, self._read(path)) for path in options.check]
        self._work = options.out / WORK_FOLDER
        self._claim()
        torch.set_num_threads(options.threads)
        self._llm: LLM | None = None

    def answer(self) -> tuple[list[TaughtRow], float]:
        """Return all rows of this run and those before it, and the seconds that they took."""
        budget_s = self._options.minutes * 60 * ANSWERING_SHARE
        rows: list[TaughtRow] = []
        spent_s, number = 0.0, 0
        while True:
            path = self._work / f"answers-{number:05d}.safetensors"
            if path.is_file():
                found, seconds = load_rows(path)
            elif spent_s < budget_s or not number:
                began = time.monotonic()
                found = self._answer_round(number)
                seconds = time.monotonic() - began
                if not found:
                    raise InvalidRequest(
                        "the target answers too little to learn from; give other prompts as --data"
                    )
                save_rows(path, found, seconds)
            else:
                return rows, spent_s
            rows += found
            spent_s, number = spent_s + seconds, number + 1
            tokens = _generated(rows)
            rate = _generated(found) / seconds if seconds else 0.0
            self._tell(f"answers {number} {spent_s:.0f}/{budget_s:.0f} s tokens {tokens} {rate:.0f}/s")

    def train(self, rows: list[TaughtRow]) -> float:
        """The seconds spent, in all runs. OUT has the draft when this ends."""
        torch.manual_seed(self._options.seed)
        in_float32 = load_model_config(self._options.model, "float32")
        draft = start_draft(self._options.model, in_float32, self._plan)
        optimizer = Optimizer.of_model(draft)
        progress = load_checkpoint(self._work, draft, optimizer)
        budget_s = self._options.minutes * 60 * (1 - ANSWERING_SHARE)
        loop = TrainingLoop(
            progress, max(budget_s, 1e-6), lambda: save_checkpoint(self._work, draft, optimizer, progress)
        )
        if progress.elapsed_s < budget_s:
            batches = TaughtBatches(rows, self._options.seed + progress.step)
            if not progress.step:
                calibrate_draft(draft, next(batches))
            loop.run("draft", batches, DraftTrainer(draft, optimizer, loop).take_step)
        write_model(draft, self._options.out, self._target.bos_token_id, self._target.eos_token_ids)
        copy_tokenizer(self._options.model, self._engine(), self._options.out)
        return progress.elapsed_s

    def measure(self, rows: list[TaughtRow], trained_s: float) -> bool:
        """Write the card; return whether the draft pays anywhere."""
        target, draft = self._engine(), self._load(self._options.out)
        held_out = self._held_out or self._questions(MEASURED_PROMPTS, HELD_OUT_SEED)
        checks = self._checks or [("held back", held_out)]
        measured = []
        for name, prompts in checks:
            for temperature in self._options.temperatures:
                asked = prompts[:: max(1, len(prompts) // MEASURED_PROMPTS)][:MEASURED_PROMPTS]
                answers = target_answers(target, asked, temperature, MEASURED_TOKENS, HELD_OUT_SEED)
                found = MeasuredAcceptance(
                    name, temperature, accept_draft_model(draft, answers), accept_ngrams(answers)
                )
                measured.append(found)
        times = measure_steps(target, draft, checks[0][1][0][:TIMED_PROMPT_TOKENS])
        facts = CardFacts(
            target=self._options.model.name,
            plan=self._plan,
            threads=self._options.threads,
            quantization=self._options.quantization,
            trained_minutes=trained_s / 60,
            taught_tokens=_generated(rows),
            measured=measured,
            times=times,
        )
        write_file(self._options.out / "README.md", draft_card(facts).encode())
        for each in measured:
            for sentence in verdicts(each, times):
                self._tell(sentence)
        return any(pays_somewhere(each, times) for each in measured)

    def _answer_round(self, number: int) -> list[TaughtRow]:
        seed = self._options.seed + number * PROMPTS_PER_ROUND
        return answer_prompts(
            self._engine(), self._round_prompts(number, seed), self._options.temperatures, seed
        )

    def _round_prompts(self, number: int, seed: int) -> Sequence[Sequence[int]]:
        if not self._prompts:
            return self._questions(PROMPTS_PER_ROUND, seed)
        first = number * PROMPTS_PER_ROUND
        return [
            self._prompts[index % len(self._prompts)] for index in range(first, first + PROMPTS_PER_ROUND)
        ]

    def _read(self, path: Path) -> list[list[int]]:
        return read_prompts(path, self._tokenizer, self._most_tokens)

    def _questions(self, count: int, seed: int) -> list[list[int]]:
        return ask_itself(self._engine(), self._tokenizer, count, seed, self._most_tokens)

    def _claim(self) -> None:
        """OUT belongs to one target and one size: what was begun for another is not gone on with, and no
        other model is written over."""
        asked = {
            "target": checkpoint_digest(self._options.model),
            "plan": repr(self._plan),
            "seed": self._options.seed,
        }
        path = self._work / "run.json"
        if not path.is_file():
            if (self._options.out / "config.json").exists():
                raise InvalidRequest(f"{self._options.out} holds a model already; give another --out")
            self._options.out.mkdir(parents=True, exist_ok=True)
            make_private_folder(self._work)  # prompts and answers; the draft is for who is to serve it
            write_file(path, json.dumps(asked).encode())
        elif path.read_text("utf-8") != json.dumps(asked):
            raise InvalidRequest(
                f"{self._options.out} holds a draft that was begun for another target, size or seed; "
                "give another --out, or remove it"
            )

    def _engine(self) -> LLM:
        """The target, loaded when it is first needed."""
        if self._llm is None:
            self._llm = self._load(self._options.model)
        return self._llm

    def _load(self, model: Path) -> LLM:
        longest = min(self._target.max_position_embeddings, LONGEST_TOKENS)
        return LLM(
            model,
            threads=self._options.threads,
            quantization=self._options.quantization,
            max_model_len=longest,
            max_sequences=PROMPTS_PER_ROUND,
            kv_blocks=PROMPTS_PER_ROUND * (longest // HASH_BLOCK_TOKENS + 2),
        )


def _prompt_room(positions: int) -> int:
    """Return how long a prompt may be where a sequence has so many positions."""
    room = positions - MAX_ANSWER_TOKENS - LONGEST_DRAFT
    if room < LEAST_PROMPT_TOKENS:
        raise InvalidRequest(
            f"the target has {positions} positions; prompts and answers to learn from need "
            f"{LEAST_PROMPT_TOKENS + MAX_ANSWER_TOKENS + LONGEST_DRAFT} at least"
        )
    return min(room, MAX_PROMPT_TOKENS)


def _generated(rows: Sequence[TaughtRow]) -> int:
    return sum(len(row.top_ids) for row in rows)
