"""Measure what drafting from a request's own text, from earlier answers and by a draft head brings: tokens
per step and second, without, with the one, with both and with a head too, in turns.

    python -m tests.bench.bench_ngram --model DIR|FILE [--batch 1,8] [--temperature T] [--prompts N]
                                      [--again T] [--head DIR|random]

In process, decode steps alone: chats (first turns of MT-bench), code (HumanEval) and questions about passages
of the documentation, as a stack's retriever finds them; `random` ids at temperature 1, where nothing is to be
found, for any model. Answers end where the model ends them, and have to be the same all ways. Earlier answers
are those to the prompts before; with `--again` also some to the same prompts, drawn at that temperature.
A `random` head has the sizes of one for SmolLM2 and is of no use: it shows what such a one costs.
Beside the clock stands the process's CPU time: with `--threads 1` it says more where other programs compute
as well. All kinds but `random` want the shared test data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from shared.engine import LLM, Engine, SamplingParams, load_model_config
from shared.engine.draft_head.config import DraftHeadConfig
from shared.engine.engine import NGRAM_TOKENS
from shared.engine.scheduling.head_drafts import HEAD_TOKENS
from shared.messages import ChatTurn
from shared.text.retrieval_prompt import retrieval_prompt
from shared.text.tokenizer import TextTokenizer
from shared.training.prompts import read_prompts
from tests.bench.bench_answers import document_passages
from tests.bench.document_questions import read_questions
from tests.support.data import data_dir
from tests.support.draft_heads import save_head

MAX_PROMPT_TOKENS = 1024
KINDS = ("chat", "code", "passages")
RANDOM = "random"
RANDOM_TOKENS = 128


@dataclass(slots=True)
class Decoded:
    """Sum up steps without prompts: their time, rows that decoded, tokens drawn, and drafts."""

    us: int = 0
    cpu_us: int = 0
    rows: int = 0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0

    def add(self, other: Decoded) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def read_kinds(data: Path, tokenizer: TextTokenizer, count: int) -> dict[str, list[list[int]]]:
    """`count` prompts of each kind, evenly from all over."""
    files = {
        "chat": data / "mt-bench" / "mt_bench_question.jsonl",
        "code": data / "humaneval" / "HumanEval.jsonl",
    }
    found = {name: read_prompts(path, tokenizer, MAX_PROMPT_TOKENS) for name, path in files.items()}
    questions = read_questions("open")
    with tempfile.TemporaryDirectory(prefix="penstock-lookup-") as folder:
        passages = document_passages(questions, "retrieved", Path(folder))
    found["passages"] = [
        tokenizer.encode_chat([ChatTurn("user", retrieval_prompt(each, question.question))])
        for each, question in zip(passages, questions, strict=True)
    ]
    return {name: ids[:: max(1, len(ids) // count)][:count] for name, ids in found.items()}


class Arm(NamedTuple):
    """A way to draft: how many tokens of text and by a head, and whose answers are kept; nobody's without a
    `scope`."""

    longest: int
    scope: str
    head: int = 0

    def begin(self, engine: Engine, key: str, prompt: Sequence[int], params: SamplingParams) -> None:
        engine.admit(key, prompt, len(prompt), params, [], answer_scope=self.scope)


ARMS = {"none": Arm(0, ""), "own": Arm(NGRAM_TOKENS, ""), "earlier": Arm(NGRAM_TOKENS, "one")}
# Each has a scope of its own: one would find the other's answers to the same prompts.
HEAD_ARMS = {
    "none": Arm(0, ""),
    "earlier": Arm(NGRAM_TOKENS, "one"),
    "head": Arm(0, "", HEAD_TOKENS),
    "both": Arm(NGRAM_TOKENS, "two", HEAD_TOKENS),
}
RANDOM_WIDTHS = (576, 1536, 1, 8192)  # hidden, inner, blocks, vocabulary


def decode(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams, arm: Arm
) -> tuple[Decoded, list[list[int]]]:
    """All of them at once, to their ends."""
    engine.limit_ngrams(arm.longest)
    engine.limit_head(arm.head)
    keys = [f"r{number}" for number in range(len(prompts))]
    for key, prompt in zip(keys, prompts, strict=True):
        arm.begin(engine, key, prompt, params)
    drawn: dict[str, list[int]] = {key: [] for key in keys}
    seen = Decoded()
    while engine.has_work:
        began_ns = time.process_time_ns()
        result = engine.step()
        cpu_us = (time.process_time_ns() - began_ns) // 1000
        for output in result.outputs:
            drawn[output.key] += output.token_ids
        if not result.num_prefill_tokens:
            seen.add(
                Decoded(
                    result.step_us,
                    cpu_us,
                    result.num_decode,
                    sum(len(output.token_ids) for output in result.outputs),
                    sum(output.proposed_drafts for output in result.outputs),
                    sum(output.accepted_drafts for output in result.outputs),
                )
            )
    return seen, list(drawn.values())


def arms_of(engine: Engine) -> dict[str, Arm]:
    return HEAD_ARMS if engine.config.draft_head else ARMS


def random_head(folder: Path, model: Path) -> Path:
    """Save a head that knows nothing of `model`."""
    target = load_model_config(model)
    hidden, inner, blocks, vocab = RANDOM_WIDTHS
    layers = len(target.layers)
    config = DraftHeadConfig(
        "",
        target.vocab_size,
        target.hidden_size,
        hidden,
        inner,
        blocks,
        (layers // 10, layers // 2, layers - 1),
        min(vocab, target.vocab_size),
        1e-5,
    )
    return save_head(folder, config)


def measure(
    engine: Engine, prompts: Sequence[Sequence[int]], batch: int, params: SamplingParams, again: float
) -> dict[str, float]:
    """Groups of `batch` prompts, each in every way, who is first in turns."""
    groups = [prompts[first : first + batch] for first in range(0, len(prompts), batch)]
    groups = [group for group in groups if len(group) == batch]
    if again:
        for group in groups:
            decode(engine, group, replace(params, temperature=again, seed=11), ARMS["earlier"])
    arms = arms_of(engine)
    *_, full = arms
    sums = {name: Decoded() for name in arms}
    ratios: list[float] = []
    for number, group in enumerate(groups):
        names = list(arms)
        order = names[number % len(names) :] + names[: number % len(names)]
        found = {name: decode(engine, group, params, arms[name]) for name in order}
        for name, (decoded, answers) in found.items():
            sums[name].add(decoded)
            if answers != found["none"][1]:
                sys.exit("the answers differ")
        ratios.append(found["none"][0].cpu_us / found[full][0].cpu_us)
    row: dict[str, float] = {}
    for name, decoded in sums.items():
        row |= {
            f"{name}_tokens_per_s": 1e6 * decoded.tokens / decoded.us,
            f"{name}_ratio": sums["none"].us / decoded.us,
            f"{name}_cpu_ratio": sums["none"].cpu_us / decoded.cpu_us,
            f"{name}_tokens_per_step": decoded.tokens / decoded.rows,
            f"{name}_drafted": decoded.proposed / decoded.tokens,
            f"{name}_right": decoded.accepted / max(1, decoded.proposed),
        }
    return row | {"cpu_ratio_median": statistics.median(ratios), "cpu_ratio_worst": min(ratios)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder or GGUF file")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=16, help="of each kind")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer at most")
    parser.add_argument("--again", type=float, default=0.0, metavar="T", help="each was answered before at T")
    parser.add_argument("--head", default="", metavar="DIR", help="a draft head, or random")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.kinds.split(",")
    batches = [int(part) for part in options.batch.split(",")]
    most = max(batches)
    head = options.head
    if head == RANDOM:
        head = str(random_head(Path(tempfile.mkdtemp(prefix="penstock-head-")), options.model))
    llm = LLM(
        options.model,
        threads=options.threads,
        ngram_tokens=NGRAM_TOKENS,
        ngram_scopes=2,
        draft_head=head,
        max_sequences=most,
        max_batch_tokens=max(512, most),
        kv_blocks=most * (MAX_PROMPT_TOKENS + options.tokens + 32) // 16 + 2 * most,
        max_model_len=MAX_PROMPT_TOKENS + options.tokens + 16,
    )
    count = max(options.prompts, most)
    random = Random(0)
    vocabulary = range(llm.engine.model_config.vocab_size)
    kinds = {RANDOM: [random.choices(vocabulary, k=RANDOM_TOKENS) for _ in range(count)]}
    if set(wanted) - {RANDOM}:
        data = data_dir()
        if data is None:
            parser.error("the shared test data is not at hand; see tests/support/data.py")
        kinds |= read_kinds(data, TextTokenizer.load(options.model), count)
    params = SamplingParams(temperature=options.temperature, seed=7, max_tokens=options.tokens)
    hot = replace(params, temperature=1.0, ignore_eos=True)
    decode(
        llm.engine, kinds[RANDOM][:most], hot, ARMS["none"]
    )  # so that the engine knows what its steps take
    found = {
        f"{kind} b{batch}": measure(
            llm.engine, kinds[kind], batch, hot if kind == RANDOM else params, options.again
        )
        for kind in wanted
        for batch in batches
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("prompts        drafts from  tokens/s  ratio  of CPU  tokens/step  drafted  right")
    for name, row in found.items():
        for arm in arms_of(llm.engine):
            print(
                f"{name:14} {arm:11} {row[f'{arm}_tokens_per_s']:9.0f} {row[f'{arm}_ratio']:6.3f}"
                f" {row[f'{arm}_cpu_ratio']:7.3f} {row[f'{arm}_tokens_per_step']:12.2f}"
                f" {row[f'{arm}_drafted']:8.2f} {row[f'{arm}_right']:6.2f}"
            )
        print(
            f"{name:14} of groups: median {row['cpu_ratio_median']:.3f}, worst {row['cpu_ratio_worst']:.3f}"
        )


if __name__ == "__main__":
    main()
