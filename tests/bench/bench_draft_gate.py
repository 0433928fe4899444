"""Measure that drafts which bring nothing cost next to nothing: with them against without, in turns.

    python -m tests.bench.bench_draft_gate --model FILE [--cases random,hot,b32,useless,lying,stopped]
                                           [--head DIR] [--arms again,head] [--batch N] [--tokens N]
                                           [--rounds N] [--threads N] [--json]

In process, on the real engine. Each arm has an engine, and in each turn every arm takes a step, who is first
in turns: what else the machine does, all of them meet. A second arm without drafts, `again`, says what the
machine makes of no difference at all: what is nearer to 1 than that is 1.

Look-ups and a draft head are the engine's own. Offered drafts go the way of a decode worker's: its book of
sessions, the codec of its messages, the offer before each step, all of it counted; whoever drafts is made up
and costs nothing. It knows the answer, which is drawn first without drafts, and is right as often as its case
says. A ratio above 1 means faster with drafts. Answers have to be the same all ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from services.decode.ahead.draft_offers import DraftOffers
from services.decode.drafts import DraftBook
from shared.bus.codec import decode, encode
from shared.engine import LLM, Engine, SamplingParams, StepResult, TokenOutput
from shared.engine.engine import NGRAM_TOKENS
from shared.engine.scheduling.head_drafts import HEAD_TOKENS
from shared.messages import DraftBlock, DraftCommit
from shared.messages.envelope import Envelope
from shared.worker.wire import sequence_key

PROMPT_TOKENS = 96
DRAFT_TOKENS, DRAFT_BATCH_TOKENS = 4, 32  # as a decode worker has them
TRUSTED_TOKENS = 24
"""A drafter that lies or stops is right for so many tokens before that."""
ENVELOPE = Envelope()


class Case(NamedTuple):
    """`right`: the chance of a guess while the drafter is well; `then`: what it does after that."""

    batch: int  # 0: as asked for
    temperature: float
    right: float
    then: str = "go on"


CASES = {
    "random": Case(0, 1.0, 0.1),
    "hot": Case(0, 1.5, 0.2),
    "b32": Case(32, 0.0, 0.6),
    "useless": Case(0, 0.0, 0.0),
    "lying": Case(0, 0.0, 1.0, "lie"),
    "stopped": Case(0, 0.0, 1.0, "stop"),
}
PLAIN, AGAIN, LOOK_UPS, OFFERED, HEAD = "none", "again", "look-ups", "offered", "head"
ARMS = (PLAIN, AGAIN, LOOK_UPS, OFFERED)
WEIGHT_CACHE_MB = 1024
"""The engines of all arms map one file of weights."""


class Drafter:
    """Answers commits from what is known to come."""

    def __init__(self, case: Case, vocabulary: int, answers: dict[str, list[int]], seed: int) -> None:
        self._case = case
        self._vocabulary = vocabulary
        self._answers = answers
        self._random = Random(seed)

    def answer(self, commit: DraftCommit, known: dict[str, list[int]]) -> bytes | None:
        """Return its block as it comes from the bus, None where it says nothing."""
        rows = [
            (request_id, *self._row(request_id, length, len(known[request_id])))
            for request_id, length in zip(commit.request_ids, commit.lengths, strict=True)
        ]
        rows = [row for row in rows if row[2]]
        if not rows:
            return None
        request_ids, bases, token_ids = zip(*rows, strict=True)
        return encode(DraftBlock(request_ids, (1,) * len(rows), bases, token_ids), ENVELOPE)

    def _row(self, request_id: str, length: int, drawn: int) -> tuple[int, tuple[int, ...]]:
        is_well = drawn < TRUSTED_TOKENS or self._case.then == "go on"
        base = PROMPT_TOKENS + drawn
        if not is_well and self._case.then == "stop":
            return base, ()
        right = self._case.right if is_well else 0.0
        truth = self._answers[request_id][drawn : drawn + length]
        ids = tuple(
            each if self._random.random() < right else self._random.randrange(self._vocabulary)
            for each in truth
        )
        lies_of_place = not is_well and self._random.random() < 0.5
        return base - 2 * lies_of_place, ids


class Offers:
    """A decode worker's part in offered drafts."""

    def __init__(self, book: DraftBook, drafter: Drafter) -> None:
        self._book = book
        self._drafter = drafter
        self._offers = DraftOffers()
        self._data: bytes | None = None

    def open_draft(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        self._book.open_draft(request_id, 1, "s", prompt, PROMPT_TOKENS, params)

    def before_step(self, engine: Engine) -> None:
        if self._data is not None:
            _, block = decode(self._data)
            assert isinstance(block, DraftBlock)
            self._book.receive(block, "s", time.monotonic())
        self._offers.take(self._book.proposals())
        for use in self._offers.offer(engine):
            self._book.record_use(use)

    def after_step(self, result: StepResult) -> list[DraftCommit]:
        for output in result.outputs:
            if output.finish_reason is None:
                drafted = not output.looked_up
                self._book.advance(
                    output.key,
                    output.token_ids,
                    output.proposed_drafts * drafted,
                    output.accepted_drafts * drafted,
                )
            else:
                self._book.close_draft(output.key)
        self._book.prices = result.draft_prices or self._book.prices
        messages = [each.message for each in self._book.outgoing(time.monotonic())]
        for message in messages:
            encode(message, ENVELOPE)
        return [each for each in messages if isinstance(each, DraftCommit)]

    def ask(self, commits: Sequence[DraftCommit], known: dict[str, list[int]]) -> None:
        """Have the drafter answer, which is not counted."""
        self._data = self._drafter.answer(commits[0], known) if commits else None


class Arm:
    """One way to decode, with an engine of its own. `book`: of offered drafts."""

    def __init__(self, name: str, engine: Engine, book: DraftBook | None) -> None:
        self.name = name
        self.engine = engine
        self.book = book

    def limit_drafts(self, *, drafts: bool) -> None:
        self.engine.limit_ngrams(NGRAM_TOKENS * (drafts and self.name == LOOK_UPS))
        self.engine.limit_head(HEAD_TOKENS * (drafts and self.name == HEAD))


class Run:
    """The answers to a set of prompts in one way, and the CPU time of each step without prompts."""

    def __init__(
        self, arm: Arm, prompts: dict[str, list[int]], params: SamplingParams, drafter: Drafter | None = None
    ) -> None:
        self.cpu_ns: list[int] = []
        self.answers: dict[str, list[int]] = {request_id: [] for request_id in prompts}
        self._arm = arm
        self._prompts = prompts
        self._params = params
        self._offers = None if arm.book is None or drafter is None else Offers(arm.book, drafter)
        self._names = {sequence_key(request_id, 1): request_id for request_id in prompts}
        arm.limit_drafts(drafts=True)
        for key, request_id in self._names.items():
            prompt = prompts[request_id]
            arm.engine.admit(key, prompt, len(prompt), params, [])

    @property
    def has_work(self) -> bool:
        return self._arm.engine.has_work

    @property
    def cpu_s(self) -> float:
        return sum(self.cpu_ns) / 1e9

    def step(self) -> None:
        began_ns = time.process_time_ns()
        if self._offers is not None:
            self._offers.before_step(self._arm.engine)
        result = self._arm.engine.step()
        for output in result.outputs:
            self._take(output)
        commits = self._offers.after_step(result) if self._offers is not None else []
        took_ns = time.process_time_ns() - began_ns
        if not result.num_prefill_tokens:
            self.cpu_ns.append(took_ns)
        if self._offers is not None:
            self._offers.ask(commits, self.answers)

    def _take(self, output: TokenOutput) -> None:
        request_id = self._names[output.key]
        answer = self.answers[request_id]
        if self._offers is not None and not answer and output.finish_reason is None:
            self._offers.open_draft(request_id, self._prompts[request_id], self._params)
        answer += output.token_ids


def decode_in_turns(runs: Sequence[Run]) -> None:
    """A step of each, who is first in turns, until all are done."""
    turn = 0
    while left := [run for run in runs if run.has_work]:
        turn += 1
        first = turn % len(left)
        for run in left[first:] + left[:first]:
            run.step()


def make_arms(case: Case, options: argparse.Namespace, cache: Path) -> list[Arm]:
    batch = case.batch or options.batch
    names = [name for name in (*ARMS, HEAD) if name in (PLAIN, *options.arms.split(","))]
    return [
        Arm(
            name,
            LLM(
                options.model,
                threads=options.threads,
                ngram_tokens=NGRAM_TOKENS,
                draft_head=options.head if name == HEAD else "",
                max_sequences=batch,
                kv_blocks=batch * ((PROMPT_TOKENS + options.tokens) // 16 + 3),
                max_model_len=PROMPT_TOKENS + options.tokens + 32,
                weight_cache_mb=WEIGHT_CACHE_MB,
                weight_cache_dir=str(cache),
            ).engine,
            DraftBook("decode", DRAFT_TOKENS, DRAFT_BATCH_TOKENS) if name == OFFERED else None,
        )
        for name in names
    ]


def measure(case: Case, options: argparse.Namespace, cache: Path) -> dict[str, dict[str, float]]:
    """Medians of the ratios of all rounds, each with new prompts. The engines and the book are new: they know
    nothing of the drafter."""
    batch = case.batch or options.batch
    arms = make_arms(case, options, cache)
    plain = arms[0]
    random = Random(7)
    vocabulary = plain.engine.model_config.vocab_size
    params = SamplingParams(temperature=case.temperature, seed=5, max_tokens=options.tokens, ignore_eos=True)
    ratios: dict[str, list[float]] = {arm.name: [] for arm in arms[1:]}
    sums_s = {arm.name: 0.0 for arm in arms}
    for number in range(-1, options.rounds):  # one before all, so that the engines know their steps
        prompts = {
            f"{number}.{each}": random.choices(range(vocabulary), k=PROMPT_TOKENS) for each in range(batch)
        }
        if number < 0:
            warm_up(arms, prompts, params)
            continue
        first = Run(plain, prompts, params)
        decode_in_turns([first])
        drafter = Drafter(case, vocabulary, first.answers, number)
        runs = {arm.name: Run(arm, prompts, params, drafter) for arm in arms}
        decode_in_turns(list(runs.values()))
        for name, run in runs.items():
            if run.answers != first.answers:
                sys.exit(f"the answers of {name} differ")
            sums_s[name] += run.cpu_s
            if name in ratios:
                ratios[name].append(runs[PLAIN].cpu_s / run.cpu_s)
    for arm in arms:
        arm.engine.close()
    return {
        name: {
            "cpu": statistics.median(found),
            "all_cpu": sums_s[PLAIN] / sums_s[name],
            "worst_cpu": min(found),
            "first_cpu": found[0],
        }
        for name, found in ratios.items()
    }


def warm_up(arms: Sequence[Arm], prompts: dict[str, list[int]], params: SamplingParams) -> None:
    runs = [Run(arm, prompts, params) for arm in arms]
    for arm in arms:
        arm.limit_drafts(drafts=False)
    decode_in_turns(runs)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder or GGUF file")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--head", default="", metavar="DIR", help="a draft head")
    parser.add_argument(
        "--arms", default="", help="beside that without drafts, all that there are by default"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=80, help="of an answer")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.arms = options.arms or ",".join((*ARMS, HEAD) if options.head else ARMS)
    with tempfile.TemporaryDirectory(prefix="penstock-gate-") as cache:
        found = {name: measure(CASES[name], options, Path(cache)) for name in options.cases.split(",")}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("CPU       drafts    of rounds   of all    worst    first, when nothing was known")
    for name, arms in found.items():
        for arm, row in arms.items():
            print(
                f"{name:9} {arm:9} {row['cpu']:9.3f} {row['all_cpu']:8.3f} {row['worst_cpu']:8.3f}"
                f" {row['first_cpu']:8.3f}"
            )


if __name__ == "__main__":
    main()
