"""Score the demo models as shipped: `python -m shared.demo.evaluate --books DIR --work-dir DIR`.

Prints JSON: exact answers on held-out facts, bits per byte on held-out books, the draft's greedy agreement
with the target, and the ratio of their single-token step times.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from shared.demo.batches import example_ids
from shared.demo.checkpoint import load_model
from shared.demo.examples import Example, make_example
from shared.demo.invent import Inventor, Vocabulary
from shared.demo.llama import Llama
from shared.demo.prepare import prepare
from shared.engine import Engine, EngineConfig, SamplingParams

MODELS = Path(__file__).parent / "models"
MAX_FACTS = 6
MAX_FILLERS = 8
BOOK_WINDOW_TOKENS = 512
BOOK_CONTEXT_TOKENS = 128
STEP_CONTEXT_TOKENS = 256
STEP_REPEATS = 200
STEP_ROUNDS = 9


def held_out_examples(vocabulary: Vocabulary, count: int, seed: int) -> list[Example]:
    """Examples all of whose invented names, filler sentences and draws are unseen in training."""
    inventor = Inventor.seeded(seed, vocabulary, held_out=True)
    return [
        make_example(inventor, inventor.random.randint(1, MAX_FACTS), inventor.random.randint(0, MAX_FILLERS))
        for _ in range(count)
    ]


@torch.inference_mode()
def greedy_answer_is_exact(model: Llama, prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether greedy decoding gives exactly `answer`, <|end|> included.

    One pass over prompt and answer decides it: greedy decoding follows the answer while every argmax agrees.
    """
    ids = torch.tensor([[*prompt, *answer]])
    logits = model.head(model.model(ids)[0, len(prompt) - 1 : -1])  # [answer, V]
    return logits.argmax(-1).tolist() == list(answer)


def exact_answers(model: Llama, tokenizer: Tokenizer, examples: Sequence[Example]) -> dict[str, float]:
    """Share of exact answers: `all`, and per kind of fact."""
    right: defaultdict[str, list[bool]] = defaultdict(list)
    for example in examples:
        exact = greedy_answer_is_exact(model, *example_ids(example, tokenizer))
        right["all"].append(exact)
        right[example.kind].append(exact)
    return {kind: statistics.fmean(marks) for kind, marks in sorted(right.items())}


@torch.inference_mode()
def bits_per_byte(model: Llama, tokens: Tensor, bytes_per_token: float, windows: int) -> float:
    """Bits per byte over `windows` windows spread evenly; each token sees at least 128 tokens of context."""
    stride = (len(tokens) - BOOK_WINDOW_TOKENS - 1) // windows
    nats, count = 0.0, 0
    for window in range(windows):
        piece = tokens[window * stride : window * stride + BOOK_WINDOW_TOKENS + 1]
        hidden = model.model(piece[None, :-1])[0, BOOK_CONTEXT_TOKENS:]
        losses = functional.cross_entropy(
            model.head(hidden), piece[1 + BOOK_CONTEXT_TOKENS :], reduction="sum"
        )
        nats += losses.item()
        count += len(hidden)
    return nats / count / math.log(2) / bytes_per_token


@torch.inference_mode()
def agreement(target: Llama, draft: Llama, texts: Sequence[Tensor]) -> float:
    """Share of positions of held-out text at which both models' greedy choice is the same token."""
    same, count = 0, 0
    for ids in texts:
        chosen = target(ids[None])[0].argmax(-1)
        same += int((draft(ids[None])[0].argmax(-1) == chosen).sum())
        count += len(ids)
    return same / count


def step_seconds(folder: Path) -> float:
    """Median CPU time of the engine's step for one sequence behind 256 tokens of context, one thread.

    CPU time of the thread, not wall time, so that other work on the machine does not count.
    """
    engine = Engine(EngineConfig(str(folder)))
    prompt = list(range(STEP_CONTEXT_TOKENS))
    params = SamplingParams(temperature=0.0, max_tokens=STEP_REPEATS + 1, ignore_eos=True)
    engine.admit("step", prompt, len(prompt), params)
    engine.step()  # the prompt
    times = []
    while engine.has_work:
        start = time.thread_time()
        engine.step()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, required=True, help="folder of Markdown books")
    parser.add_argument("--work-dir", type=Path, required=True, help="token arrays are kept here")
    parser.add_argument("--target", type=Path, default=MODELS / "target")
    parser.add_argument("--draft", type=Path, default=MODELS / "draft")
    parser.add_argument("--facts", type=int, default=1000, help="held-out questions to ask")
    parser.add_argument("--windows", type=int, default=400, help="windows of 512 tokens of held-out books")
    options = parser.parse_args()
    material = prepare(options.books, options.work_dir)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    target = load_model(options.target).eval()
    tokens = torch.from_numpy(material.held_out_tokens.astype("int64"))
    examples = held_out_examples(material.held_out_vocabulary, options.facts, seed=20_000)
    exact = exact_answers(target, tokenizer, examples)
    report: dict[str, object] = {
        "exact_answers": exact.pop("all"),
        "exact_answers_by_kind": exact,
        "questions": len(examples),
        "bits_per_byte": bits_per_byte(
            target, tokens, material.held_out_bytes / len(tokens), options.windows
        ),
    }
    if options.draft.exists():
        draft = load_model(options.draft).eval()
        size = BOOK_WINDOW_TOKENS
        pairs = [example_ids(example, tokenizer) for example in examples[:100]]
        books = list(
            tokens[: len(tokens) // size * size].view(-1, size)[:: max(1, len(tokens) // size // 100)]
        )
        answers = [torch.tensor([*prompt, *answer]) for prompt, answer in pairs]
        # In turns, so that a busy moment of the machine does not fall on one of them alone.
        steps = [(step_seconds(options.target), step_seconds(options.draft)) for _ in range(STEP_ROUNDS)]
        report |= {
            "agreement_books": agreement(target, draft, books),
            "agreement_questions": agreement(target, draft, answers),
            "agreement": agreement(target, draft, [*books, *answers]),
            "target_step_ms": statistics.median(target_s for target_s, _ in steps) * 1e3,
            "draft_step_ms": statistics.median(draft_s for _, draft_s in steps) * 1e3,
            "step_ratio": statistics.median(draft_s / target_s for target_s, draft_s in steps),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
