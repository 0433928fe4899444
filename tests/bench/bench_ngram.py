"""What drafting from a request's own text brings: tokens per step and second, without and with it in turns.

    python -m tests.bench.bench_ngram --model DIR|FILE [--batch 1,8] [--temperature T] [--prompts N]

In process, decode steps alone: chats (first turns of MT-bench), code (HumanEval) and questions about passages
of the documentation, as a stack's retriever finds them; `random` ids at temperature 1, where nothing is to be
found, for any model. Answers end where the model ends them, and have to be the same both ways. Beside the
clock stands the process's CPU time: with `--threads 1` it says more where other programs compute as well. All
kinds but `random` want the shared test data.
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

from shared.engine import LLM, Engine, SamplingParams
from shared.messages import ChatTurn
from shared.text.retrieval_prompt import retrieval_prompt
from shared.text.tokenizer import TextTokenizer
from shared.training.prompts import read_prompts
from tests.bench.bench_answers import document_passages
from tests.bench.document_questions import read_questions
from tests.support.data import data_dir

NGRAM_TOKENS = 8
MAX_PROMPT_TOKENS = 1024
KINDS = ("chat", "code", "passages")
RANDOM = "random"
RANDOM_TOKENS = 128


@dataclass(slots=True)
class Decoded:
    """Of steps without prompts: their time, rows that decoded, tokens drawn, and drafts."""

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


def decode(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> tuple[Decoded, list[list[int]]]:
    """All of them at once, to their ends."""
    keys = [f"r{number}" for number in range(len(prompts))]
    for key, prompt in zip(keys, prompts, strict=True):
        engine.admit(key, prompt, len(prompt), params, [])
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


def measure(
    engine: Engine, prompts: Sequence[Sequence[int]], batch: int, rounds: int, params: SamplingParams
) -> dict[str, float]:
    """Groups of `batch` prompts, each without and with lookups, who is first in turns."""
    groups = [prompts[first : first + batch] for first in range(0, len(prompts), batch)]
    groups = [group for group in groups if len(group) == batch]
    sums = {0: Decoded(), NGRAM_TOKENS: Decoded()}
    ratios: list[float] = []
    for number, group in enumerate(groups * rounds):
        pair: dict[int, tuple[Decoded, list[list[int]]]] = {}
        order = (0, NGRAM_TOKENS) if number % 2 else (NGRAM_TOKENS, 0)
        for longest in order:
            engine.limit_ngrams(longest)
            pair[longest] = decode(engine, group, params)
            sums[longest].add(pair[longest][0])
        if pair[0][1] != pair[NGRAM_TOKENS][1]:
            sys.exit("the answers differ")
        ratios.append(pair[0][0].cpu_us / pair[NGRAM_TOKENS][0].cpu_us)
    without, with_ = sums[0], sums[NGRAM_TOKENS]
    return {
        "tokens_per_s_without": 1e6 * without.tokens / without.us,
        "tokens_per_s": 1e6 * with_.tokens / with_.us,
        "ratio": without.us / with_.us,
        "cpu_ratio": without.cpu_us / with_.cpu_us,
        "cpu_ratio_median": statistics.median(ratios),
        "cpu_ratio_worst": min(ratios),
        "tokens_per_step": with_.tokens / with_.rows,
        "proposed": with_.proposed / with_.tokens,
        "accepted": with_.accepted / max(1, with_.proposed),
    }


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
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.kinds.split(",")
    batches = [int(part) for part in options.batch.split(",")]
    most = max(batches)
    llm = LLM(
        options.model,
        threads=options.threads,
        ngram_tokens=NGRAM_TOKENS,
        max_sequences=most,
        max_batch_tokens=max(512, most),
        kv_blocks=most * (MAX_PROMPT_TOKENS + options.tokens + 32) // 16 + 2 * most,
        max_model_len=MAX_PROMPT_TOKENS + options.tokens + 16,
        prefix_cache=False,
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
    decode(llm.engine, kinds[RANDOM][:most], hot)  # so that the engine knows what its steps take
    found = {
        f"{kind} b{batch}": measure(
            llm.engine, kinds[kind], batch, options.rounds, hot if kind == RANDOM else params
        )
        for kind in wanted
        for batch in batches
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        "prompts        tokens/s without  with   ratio  of CPU  median   worst  tokens/step  drafted  right"
    )
    for name, row in found.items():
        print(
            f"{name:14} {row['tokens_per_s_without']:16.0f} {row['tokens_per_s']:5.0f} {row['ratio']:7.3f}"
            f" {row['cpu_ratio']:7.3f} {row['cpu_ratio_median']:7.3f} {row['cpu_ratio_worst']:7.3f}"
            f" {row['tokens_per_step']:12.2f} {row['proposed']:8.2f} {row['accepted']:6.2f}"
        )


if __name__ == "__main__":
    main()
