"""Measure that drafts which bring nothing cost next to nothing: with them against without, in turns.

    python -m tests.bench.bench_draft_gate --model FILE [--cases random,hot,b32,useless,lying,stopped]
                                           [--head DIR] [--batch N] [--tokens N] [--rounds N] [--threads N]
                                           [--json]

In process, on the real engine. Look-ups and a draft head are the engine's own. Offered drafts go the way of a
decode worker's: its book of sessions, the codec of its messages, the offer before each step, all of it
counted; whoever drafts is made up and costs nothing. It knows the answer, which is drawn first without
drafts, and is right as often as its case says. A ratio above 1 means faster with drafts. Answers have to be
the same all ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from services.decode.ahead.draft_offers import DraftOffers
from services.decode.drafts import DraftBook
from shared.bus.codec import decode, encode
from shared.engine import LLM, Engine, SamplingParams, StepResult
from shared.engine.scheduling.head_drafts import HEAD_TOKENS
from shared.messages import DraftBlock, DraftCommit
from shared.messages.envelope import Envelope
from shared.worker.wire import sequence_key

PROMPT_TOKENS = 96
NGRAM_TOKENS = 8
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
ARMS = ("none", "look-ups", "offered", "head")


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


class Run(NamedTuple):
    """Hold the sums over steps without prompts."""

    cpu_s: float
    wall_s: float
    answers: dict[str, list[int]]


class Offers:
    """A decode worker's part in offered drafts."""

    def __init__(self, book: DraftBook, drafter: Drafter) -> None:
        self._book = book
        self._drafter = drafter
        self._offers = DraftOffers()
        self._data: bytes | None = None

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


def decode_all(
    engine: Engine,
    prompts: dict[str, list[int]],
    params: SamplingParams,
    arm: str,
    book: DraftBook | None = None,
    drafter: Drafter | None = None,
) -> Run:
    """Decode to the end of all."""
    engine.limit_ngrams(NGRAM_TOKENS * (arm == "look-ups"))
    engine.limit_head(HEAD_TOKENS * (arm == "head"))
    keys = {request_id: sequence_key(request_id, 1) for request_id in prompts}
    names = {key: request_id for request_id, key in keys.items()}
    for request_id, prompt in prompts.items():
        engine.admit(keys[request_id], prompt, len(prompt), params, [])
    answers: dict[str, list[int]] = {request_id: [] for request_id in prompts}
    offers = None if book is None or drafter is None else Offers(book, drafter)
    cpu_ns = wall_ns = 0
    while engine.has_work:
        cpu_began_ns, began_ns = time.process_time_ns(), time.perf_counter_ns()
        if offers is not None:
            offers.before_step(engine)
        result = engine.step()
        for output in result.outputs:
            request_id = names[output.key]
            if book is not None and not answers[request_id] and output.finish_reason is None:
                book.open_draft(request_id, 1, "s", prompts[request_id], PROMPT_TOKENS, params)
            answers[request_id] += output.token_ids
        commits = offers.after_step(result) if offers is not None else []
        if not result.num_prefill_tokens:
            cpu_ns += time.process_time_ns() - cpu_began_ns
            wall_ns += time.perf_counter_ns() - began_ns
        if offers is not None:
            offers.ask(commits, answers)
    return Run(cpu_ns / 1e9, wall_ns / 1e9, answers)


def measure(case: Case, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians of the ratios of all rounds, each with new prompts and all arms in turns. The engine and the
    book are new: they know nothing of the drafter."""
    batch = case.batch or options.batch
    blocks = batch * ((PROMPT_TOKENS + options.tokens) // 16 + 3)
    engine = LLM(
        options.model,
        threads=options.threads,
        ngram_tokens=NGRAM_TOKENS,
        draft_head=options.head,
        max_sequences=batch,
        kv_blocks=blocks,
        max_model_len=PROMPT_TOKENS + options.tokens + 32,
    ).engine
    random = Random(7)
    vocabulary = engine.model_config.vocab_size
    params = SamplingParams(temperature=case.temperature, seed=5, max_tokens=options.tokens, ignore_eos=True)
    book = DraftBook("decode", DRAFT_TOKENS, DRAFT_BATCH_TOKENS)
    arms = ARMS if options.head else ARMS[:-1]
    ratios: dict[str, list[tuple[float, float]]] = {arm: [] for arm in arms[1:]}
    for number in range(-1, options.rounds):  # one before all, so that the engine knows its steps
        prompts = {
            f"{number}.{each}": random.choices(range(vocabulary), k=PROMPT_TOKENS) for each in range(batch)
        }
        truth = decode_all(engine, prompts, params, "none").answers
        if number < 0:
            continue
        drafter = Drafter(case, vocabulary, truth, number)
        runs: dict[str, Run] = {}
        for turn in range(len(arms)):
            arm = arms[(turn + number) % len(arms)]
            offered = (book, drafter) if arm == "offered" else ()
            runs[arm] = decode_all(engine, prompts, params, arm, *offered)
            if runs[arm].answers != truth:
                sys.exit("the answers differ")
        plain = runs["none"]
        for arm, found in ratios.items():
            found.append((plain.cpu_s / runs[arm].cpu_s, plain.wall_s / runs[arm].wall_s))
    engine.close()
    return {
        arm: {
            "cpu": statistics.median(cpu for cpu, _ in found),
            "wall": statistics.median(wall for _, wall in found),
            "first_cpu": found[0][0],
        }
        for arm, found in ratios.items()
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder or GGUF file")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--head", default="", metavar="DIR", help="a draft head")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=160, help="of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: measure(CASES[name], options) for name in options.cases.split(",")}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("case      drafts     of CPU   of wall   CPU, when nothing was known")
    for name, arms in found.items():
        for arm, row in arms.items():
            print(f"{name:9} {arm:9} {row['cpu']:7.3f} {row['wall']:9.3f} {row['first_cpu']:9.3f}")


if __name__ == "__main__":
    main()
