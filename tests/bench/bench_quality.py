"""What each form of one GGUF file's weights is worth: `python -m tests.bench.bench_quality FILE.gguf`.

A row for bfloat16 (the weights that the file stands for), the file as it is, int8 and int4 made of
those at load, KV in int8, and, with `--llama-cpp`, for llama.cpp on the same file:

* perplexity of held-out books, teacher-forced, in windows of 512 tokens of which 128 are not scored;
* the share of those positions with bfloat16's greedy choice, and of free-running greedy continuations of
  64 tokens that are bfloat16's to the last token;
* F1 and exact share over XQuAD's English questions, each with its passage, asked through the chat template;
* tokens per second of CPU, which other programs beside it hardly change: a prompt of 512 tokens, and one
  sequence that decodes. With one thread on an idle machine that is tokens per second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.engine import Engine, EngineConfig, SamplingParams
from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer
from tests.bench.llama_cpp_process import llama_cpp_process
from tests.bench.squad_f1 import squad_f1
from tests.bench.text_scores import (
    CONTEXT_TOKENS,
    CONTINUATION_TOKENS,
    TextScores,
    held_out_windows,
    score_text,
    to_continue,
)
from tests.support.data import data_dir

WINDOW_TOKENS = 512
ANSWER_TOKENS = 32
BATCH = 16
PREFILL_TOKENS, DECODE_PROMPT_TOKENS, DECODE_STEPS, ROUNDS = 512, 64, 32, 3
LONGEST_TOKENS = 1024
COLUMNS = (
    *("weights", "perplexity", "against bf16", "same choice", "same 64"),
    *("F1", "exact", "prefill 512", "decode b1"),
)
INSTRUCTION = "Answer the question from the passage, in as few words as possible."

Answer = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    label: str
    fields: dict[str, Any]


VARIANTS = (
    Variant("bf16", {"quantization": "dense"}),
    Variant("as shipped", {}),
    Variant("int8", {"quantization": "int8"}),
    Variant("int4, group 64", {"quantization": "int4"}),
    Variant("int4, group 32", {"quantization": "int4", "quant_group": 32}),
    Variant("bf16, KV int8", {"quantization": "dense", "kv_dtype": "int8"}),
    Variant("as shipped, KV int8", {"kv_dtype": "int8"}),
)


@dataclass(frozen=True, slots=True)
class Question:
    prompt: tuple[int, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """What every variant is asked."""

    windows: list[list[int]]
    questions: list[Question]
    end_id: int
    text_of: Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Quality:
    scores: TextScores
    f1: float
    exact: float
    prefill_per_s: float
    decode_per_s: float


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    task = _task(options)
    print(
        f"{options.model.name}: {len(task.windows)} windows of {WINDOW_TOKENS} tokens, "
        f"{len(task.questions)} questions, {options.threads} threads\n"
    )
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    base: TextScores | None = None
    for variant in options.variants:
        quality = _ours(variant, task, options)
        base = base or quality.scores
        print(_row(variant.label, quality, base), flush=True)
    if options.llama_cpp is not None:
        assert base is not None
        print(_row("llama.cpp, as shipped", _llama_cpp(task, options), base), flush=True)


def _row(label: str, quality: Quality, base: TextScores) -> str:
    scores = quality.scores
    cells = [
        label,
        f"{scores.perplexity:.3f}",
        f"{scores.worse_than(base):+.2%}",
        f"{scores.same_choice(base):.1%}",
        f"{scores.same_continuation(base):.0%}",
        f"{quality.f1:.1f}",
        f"{quality.exact:.1f}",
        f"{quality.prefill_per_s:.0f}",
        f"{quality.decode_per_s:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


# ---- what is asked ------------------------------------------------------------------------------


def _task(options: argparse.Namespace) -> Task:
    tokenizer = TextTokenizer.load(options.model)
    windows = held_out_windows(
        lambda text: tokenizer.encode_text(text, add_special_tokens=False),
        options.data / "books",
        WINDOW_TOKENS,
        options.windows,
    )
    questions = []
    marked = list(_marked_questions(options.data / "xquad" / "xquad.en.json"))
    for passage, question, answers in marked[:: options.every_question]:
        said = f"{INSTRUCTION}\n\nPassage: {passage}\n\nQuestion: {question}"
        ids = tokenizer.encode_chat([ChatTurn("user", said)])
        questions.append(Question(tuple(ids), answers))
    assert tokenizer.eos_token is not None
    end_id = tokenizer.special_ids_of([tokenizer.eos_token])[tokenizer.eos_token]
    return Task(windows, questions, end_id, tokenizer.decode)


def _marked_questions(path: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(passage, question, answers)"""
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = tuple(answer["text"] for answer in asked["answers"])
                yield paragraph["context"], asked["question"], answers


def _graded(task: Task, answers: Sequence[Answer]) -> tuple[float, float]:
    """Mean F1 and the share of those at 1, of 100."""
    f1s = []
    for question, ids in zip(task.questions, answers, strict=True):
        kept = ids[:-1] if ids and ids[-1] == task.end_id else ids
        f1s.append(squad_f1(task.text_of(kept), question.answers))
    return 100 * sum(f1s) / len(f1s), 100 * sum(f1 == 1 for f1 in f1s) / len(f1s)


# ---- who answers --------------------------------------------------------------------------------


def _ours(variant: Variant, task: Task, options: argparse.Namespace) -> Quality:
    engine = Engine(
        EngineConfig(
            str(options.model),
            dtype="bfloat16",
            threads=options.threads,
            max_sequences=BATCH,
            kv_blocks=BATCH * LONGEST_TOKENS // 16,
            prefix_cache=False,
            **variant.fields,
        )
    )
    try:
        scores = score_text(engine, task.windows)
        f1, exact = _graded(task, list(_answers(engine, task)))
        prompt = task.windows[0]
        times = [_cpu_seconds(engine, prompt[:PREFILL_TOKENS], 1) for _ in range(ROUNDS)]
        prefill_s = min(prefill_s for prefill_s, _ in times)
        times = [_cpu_seconds(engine, prompt[:DECODE_PROMPT_TOKENS], DECODE_STEPS + 1) for _ in range(ROUNDS)]
        decode_s = min(decode_s for _, decode_s in times)
        return Quality(scores, f1, exact, PREFILL_TOKENS / prefill_s, DECODE_STEPS / decode_s)
    finally:
        engine.close()


def _cpu_seconds(engine: Engine, prompt: list[int], max_tokens: int) -> tuple[float, float]:
    """Of this process: for the prompt and its first token, and for all others."""
    began = time.process_time()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    engine.admit("bench", prompt, len(prompt), params)
    while not engine.step().outputs:
        pass
    computed = time.process_time()
    while engine.has_work:
        engine.step()
    return computed - began, time.process_time() - computed


def _answers(engine: Engine, task: Task) -> Iterator[Answer]:
    params = SamplingParams(
        temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True, stop_token_ids=(task.end_id,)
    )
    for first in range(0, len(task.questions), BATCH):
        drawn: dict[str, list[int]] = {}
        for number, question in enumerate(task.questions[first : first + BATCH]):
            drawn[str(number)] = []
            engine.admit(str(number), question.prompt, len(question.prompt), params)
        while engine.has_work:
            for output in engine.step().outputs:
                drawn[output.key] += output.token_ids
        yield from map(tuple, drawn.values())


def _llama_cpp(task: Task, options: argparse.Namespace) -> Quality:
    with llama_cpp_process(options.llama_cpp, options.model, options.threads, LONGEST_TOKENS) as ask:
        losses, choices = [], []
        for window in task.windows:
            told = ask({"score": window, "skip": CONTEXT_TOKENS})
            losses += told["losses"]
            choices += told["choices"]
        asked = {"most": CONTINUATION_TOKENS, "stop": None}
        continued = [ask({"generate": list(ids), **asked})["ids"] for ids in to_continue(task.windows)]
        scores = TextScores(sum(losses) / len(losses), torch.tensor(choices), tuple(map(tuple, continued)))
        asked = {"most": ANSWER_TOKENS, "stop": task.end_id}
        told_answers = [ask({"generate": list(each.prompt), **asked})["ids"] for each in task.questions]
        f1, exact = _graded(task, list(map(tuple, told_answers)))
        prompt = task.windows[0][:PREFILL_TOKENS]
        asked = {"most": 1, "stop": None}
        prefill_s = min(ask({"generate": prompt, **asked})["prompt_s"] for _ in range(ROUNDS))
        decoded = {"generate": prompt[:DECODE_PROMPT_TOKENS], "most": DECODE_STEPS + 1, "stop": None}
        decode_s = min(ask(decoded)["rest_s"] for _ in range(ROUNDS))
        return Quality(scores, f1, exact, PREFILL_TOKENS / prefill_s, DECODE_STEPS / decode_s)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--data", type=Path, default=data_dir(), help="folder of books/ and xquad/")
    parser.add_argument("--windows", type=int, default=64, help="windows of text to score")
    parser.add_argument("--every-question", type=int, default=4, metavar="N", help="ask every N-th of 1,190")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="environment with llama_cpp")
    parser.add_argument("--only", metavar="LABEL;…", help="of " + "; ".join(each.label for each in VARIANTS))
    options = parser.parse_args()
    wanted = options.only.split(";") if options.only else [each.label for each in VARIANTS]
    options.variants = [each for each in VARIANTS if each.label in wanted]
    if not options.variants or options.data is None:
        print("nothing to measure: see --only and --data", file=sys.stderr)
        sys.exit(2)
    return options


if __name__ == "__main__":
    main()
