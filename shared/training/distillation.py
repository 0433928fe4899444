"""Keep what a run of `penstock distill` goes on from, whatever it makes: a target and its answers.

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
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest
from shared.files.atomic_write import write_file
from shared.files.private_folder import make_private_folder
from shared.text.tokenizer import TextTokenizer
from shared.training.acceptance import LONGEST_DRAFT, TargetAnswer, target_answers
from shared.training.prompts import MAX_PROMPT_TOKENS, ask_itself, read_prompts, split_held_out
from shared.training.taught_rows import Lessons, TaughtRow, answer_prompts, load_rows, save_rows

WORK_FOLDER = ".distill"
ANSWERING_SHARE = 0.4
"""The share of the minutes in which the target answers; the rest is for training."""
PROMPTS_PER_ROUND = 32
MEASURED_PROMPTS = 32
MEASURED_TOKENS = 96
LEAST_PROMPT_TOKENS = 16
LONGEST_TOKENS = 1024
"""The most tokens of prompt and answer, in the engines that answer and measure."""
HELD_OUT_SEED = 1 << 40
"""Questions of the target's own that it is measured with are drawn with seeds from here on."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """`layers` and `hidden` 0: as the plan of each kind chooses. `data` None: questions that the target asks
    itself; `check` are prompts to measure with, None: those of `data` that are held back. `quantization` is
    that in which both are to be served. `begin_with`: a draft head that learns on, None: a new one."""

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
    begin_with: Path | None = None


@dataclass(frozen=True, slots=True)
class HeldBackAnswers:
    """Answers of the target to prompts that nothing is learned from; `prompts` says what they are."""

    prompts: str
    temperature: float
    answers: Sequence[TargetAnswer]


class Distillation:
    """One run's target, prompts and answers, in a folder that belongs to one target and one size."""

    def __init__(
        self,
        options: DistillOptions,
        target: ModelConfig,
        plan: str,
        lessons: Lessons,
        tell: Tell,
    ) -> None:
        """`plan` is what the run makes, in words that differ where sizes do."""
        self._options = options
        self._tell = tell
        self._target = target
        self._lessons = lessons
        self._most_tokens = _prompt_room(target.max_position_embeddings, lessons.answer_tokens)
        self._tokenizer = TextTokenizer.load(options.model)
        found = None if options.data is None else self._read(options.data)
        self._prompts, self._held_out = ([], []) if found is None else split_held_out(found)
        self._checks = [(path.stem, self._read(path)) for path in options.check]
        self.work = options.out / WORK_FOLDER
        self.digest = checkpoint_digest(options.model)
        self._claim(plan)
        torch.set_num_threads(options.threads)
        self._llm: LLM | None = None

    @property
    def training_s(self) -> float:
        """The seconds for learning, of all runs together."""
        return self._options.minutes * 60 * (1 - ANSWERING_SHARE)

    def answer(self) -> tuple[list[list[TaughtRow]], float]:
        """Return the rounds of rows of this run and those before it, and the seconds that they took."""
        budget_s = self._options.minutes * 60 * ANSWERING_SHARE
        rounds: list[list[TaughtRow]] = []
        spent_s, tokens = 0.0, 0
        while True:
            number = len(rounds)
            path = self.answers_file(number)
            if not path.is_file():
                if number and spent_s >= budget_s:
                    return rounds, spent_s
                self._answer_round(number, path)
            found, seconds = load_rows(path)
            rounds.append(found)
            spent_s += seconds
            tokens += generated_tokens(found)
            rate = generated_tokens(found) / seconds if seconds else 0.0
            self._tell(f"answers {number + 1} {spent_s:.0f}/{budget_s:.0f} s tokens {tokens} {rate:.0f}/s")

    def answers_file(self, number: int) -> Path:
        """Return where a round of answers is, or will be."""
        return self.work / f"answers-{number:05d}.safetensors"

    def checks(self) -> list[tuple[str, list[list[int]]]]:
        """Return the prompts to measure with, and what they are."""
        held_out = self._held_out or self._questions(MEASURED_PROMPTS, HELD_OUT_SEED)
        return self._checks or [("held back", held_out)]

    def held_back(self, checks: Sequence[tuple[str, list[list[int]]]]) -> list[HeldBackAnswers]:
        """Return the target's answers to some of each of `checks`, at each temperature."""
        found = []
        for name, prompts in checks:
            asked = prompts[:: max(1, len(prompts) // MEASURED_PROMPTS)][:MEASURED_PROMPTS]
            for temperature in self._options.temperatures:
                answers = target_answers(self.engine(), asked, temperature, MEASURED_TOKENS, HELD_OUT_SEED)
                found.append(HeldBackAnswers(name, temperature, answers))
        return found

    def engine(self) -> LLM:
        """The target, loaded when it is first needed."""
        if self._llm is None:
            self._llm = self.load(self._options.model)
        return self._llm

    def load(self, model: Path) -> LLM:
        """Return an engine of `model` for as many sequences as a round has prompts."""
        longest = min(self._target.max_position_embeddings, LONGEST_TOKENS)
        return LLM(
            model,
            threads=self._options.threads,
            quantization=self._options.quantization,
            max_model_len=longest,
            max_sequences=PROMPTS_PER_ROUND,
            kv_blocks=PROMPTS_PER_ROUND * (longest // HASH_BLOCK_TOKENS + 2),
        )

    def _answer_round(self, number: int, path: Path) -> None:
        began = time.monotonic()
        seed = self._options.seed + number * PROMPTS_PER_ROUND
        found = answer_prompts(
            self.engine(),
            self._round_prompts(number, seed),
            self._options.temperatures,
            seed,
            self._lessons,
        )
        if not found:
            raise InvalidRequest("the target answers too little to learn from; give other prompts as --data")
        save_rows(path, found, time.monotonic() - began)

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
        return ask_itself(self.engine(), self._tokenizer, count, seed, self._most_tokens)

    def _claim(self, plan: str) -> None:
        """OUT belongs to one target and one size: what was begun for another is not gone on with, and no
        other model is written over."""
        asked = {"target": self.digest, "plan": plan, "seed": self._options.seed}
        out, path = self._options.out, self.work / "run.json"
        if not path.is_file():
            if (out / "config.json").exists():
                raise InvalidRequest(f"{out} holds a model already; give another --out")
            out.mkdir(parents=True, exist_ok=True)
            make_private_folder(self.work)  # prompts and answers; the draft is for who is to serve it
            write_file(path, json.dumps(asked).encode())
        elif path.read_text("utf-8") != json.dumps(asked):
            raise InvalidRequest(
                f"{out} holds a draft that was begun for another target, kind, size or seed; "
                "give another --out, or remove it"
            )


def generated_tokens(rows: Sequence[TaughtRow]) -> int:
    """Count the tokens that the target generated."""
    return sum(len(row.top_ids) for row in rows)


def _prompt_room(positions: int, answer_tokens: int) -> int:
    """Return how long a prompt may be where a sequence has so many positions."""
    room = min(positions, LONGEST_TOKENS) - answer_tokens - LONGEST_DRAFT
    if room < LEAST_PROMPT_TOKENS:
        raise InvalidRequest(
            f"the target has {positions} positions; prompts and answers to learn from need "
            f"{LEAST_PROMPT_TOKENS + answer_tokens + LONGEST_DRAFT} at least"
        )
    return min(room, MAX_PROMPT_TOKENS)
