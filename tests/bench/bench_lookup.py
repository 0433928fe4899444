"""What drafting from a request's own text brings: tokens per step and second, without and with it in turns.

    python -m tests.bench.bench_lookup --model DIR|FILE [--batch 1,8] [--temperature T] [--prompts N]

In process, decode steps alone: chats (first turns of MT-bench), code (HumanEval) and questions about passages
of the documentation, as a stack's retriever finds them. Answers end where the model ends them, and have to be
the same both ways. The shared test data has to be at hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.engine import LLM, Engine, SamplingParams
from shared.messages import ChatTurn
from shared.text.retrieval_prompt import retrieval_prompt
from shared.text.tokenizer import TextTokenizer
from shared.training.prompts import read_prompts
from tests.bench.bench_answers import document_passages
from tests.bench.document_questions import read_questions
from tests.support.data import data_dir

LOOKUP_TOKENS = 8
MAX_PROMPT_TOKENS = 1024
KINDS = ("chat", "code", "passages")


@dataclass(slots=True)
class Decoded:
    """Of steps without prompts: their time, rows that decoded, tokens drawn, and drafts."""

    us: int = 0
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
        result = engine.step()
        for output in result.outputs:
            drawn[output.key] += output.token_ids
        if not result.num_prefill_tokens:
            seen.add(
                Decoded(
                    result.step_us,
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
    sums = {0: Decoded(), LOOKUP_TOKENS: Decoded()}
    ratios: list[float] = []
    for number, group in enumerate(groups * rounds):
        pair: dict[int, tuple[Decoded, list[list[int]]]] = {}
        order = (0, LOOKUP_TOKENS) if number % 2 else (LOOKUP_TOKENS, 0)
        for longest in order:
            engine.limit_lookups(longest)
            pair[longest] = decode(engine, group, params)
            sums[longest].add(pair[longest][0])
        if pair[0][1] != pair[LOOKUP_TOKENS][1]:
            sys.exit("the answers differ")
        ratios.append(pair[0][0].us / pair[LOOKUP_TOKENS][0].us)
    without, with_ = sums[0], sums[LOOKUP_TOKENS]
    return {
        "tokens_per_s_without": 1e6 * without.tokens / without.us,
        "tokens_per_s": 1e6 * with_.tokens / with_.us,
        "ratio": without.us / with_.us,
        "ratio_median": statistics.median(ratios),
        "ratio_worst": min(ratios),
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
    data = data_dir()
    if data is None:
        parser.error("the shared test data is not at hand; see tests/support/data.py")
    batches = [int(part) for part in options.batch.split(",")]
    most = max(batches)
    llm = LLM(
        options.model,
        threads=options.threads,
        lookup_tokens=LOOKUP_TOKENS,
        max_sequences=most,
        max_batch_tokens=max(512, most),
        kv_blocks=most * (MAX_PROMPT_TOKENS + options.tokens + 32) // 16 + 2 * most,
        max_model_len=MAX_PROMPT_TOKENS + options.tokens + 16,
        prefix_cache=False,
    )
    kinds = read_kinds(data, TextTokenizer.load(options.model), max(options.prompts, most))
    params = SamplingParams(temperature=options.temperature, seed=7, max_tokens=options.tokens)
    decode(llm.engine, kinds["chat"][:most], params)  # so that the engine knows what its steps take
    found = {
        f"{kind} b{batch}": measure(llm.engine, kinds[kind], batch, options.rounds, params)
        for kind in options.kinds.split(",")
        for batch in batches
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        "prompts        tokens/s without  with   ratio  median  worst  tokens/step  drafted  of these right"
    )
    for name, row in found.items():
        print(
            f"{name:14} {row['tokens_per_s_without']:16.0f} {row['tokens_per_s']:5.0f} {row['ratio']:7.3f}"
            f" {row['ratio_median']:7.3f} {row['ratio_worst']:6.3f} {row['tokens_per_step']:12.2f}"
            f" {row['proposed']:8.2f} {row['accepted']:15.2f}"
        )


if __name__ == "__main__":
    main()
