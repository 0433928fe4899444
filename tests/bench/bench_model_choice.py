"""The cost of choosing a model: by rules, and by rules that ask how hard the question is.

    python -m tests.bench.bench_model_choice [--rounds 3] [--questions 60]

A stack serves the small model that ships twice, as `small` and `large`. Each question is asked of `small` by
its name, of a virtual name with eight rules, and of two whose rule asks a classifier, one that reads words
and one that reads embeddings; the ways take turns, one call at a time. The classifiers learn MT-Bench's
questions (hard) from XQuAD's (easy), and their errors are said side by side. How often the language of a
question is told is measured on XQuAD in all languages that are there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.router.train import EMBEDDING, WORDS, comparison_words
from services.gateway.virtual.question_language import language_of
from shared.files.difficulty_head import write_difficulty_head
from shared.retrieval.encoders.embedder import MODEL_NAME, Embedder
from shared.training.difficulty import (
    Examples,
    cross_validated_errors,
    train_head,
    train_word_head,
    word_vectors,
)
from tests.bench.question_pairs import read_questions
from tests.support.client import connect, generate
from tests.support.data import REPOSITORY, data_dir
from tests.support.percentile import percentile
from tests.support.stack import Stack

MODEL = REPOSITORY / "shared/demo/models/target"
PHASE = "route.model"
RULES = """
[rules]
fallback = ["large"]
max_ttft_ms = 60000

[[rules.rules]]
min_tokens = 100000
to = "large"

[[rules.rules]]
tenants = ["acme"]
to = "large"

[[rules.rules]]
priorities = ["high"]
to = "large"

[[rules.rules]]
tools = true
to = "large"

[[rules.rules]]
formats = ["json_schema"]
to = "large"

[[rules.rules]]
languages = ["ja"]
to = "large"

[[rules.rules]]
ttft_above = { small = 100000 }
to = "large"

[[rules.rules]]
to = { small = 1, large = 0 }

[hard]
classifier = "hard.safetensors"

[[hard.rules]]
hard_above = 1.0
to = "large"

[[hard.rules]]
to = "small"

[words]
classifier = "words.safetensors"

[[words.rules]]
hard_above = 1.0
to = "large"

[[words.rules]]
to = "small"
"""
WAYS = {"named": "small", "by rules": "rules", "by its words": "words", "by its embedding": "hard"}


def examples_of(data: Path) -> Examples:
    """All of MT-Bench's first turns, and twice as many of XQuAD's questions."""
    lines = (data / "mt-bench" / "mt_bench_question.jsonl").read_text().splitlines()
    hard = [json.loads(line)["turns"][0] for line in lines]
    easy = [asked.text for asked in read_questions(data / "xquad" / "xquad.en.json")][
        :: 1190 // (2 * len(hard))
    ]
    return Examples((*hard, *easy), (1,) * len(hard) + (0,) * len(easy))


def tell_languages(data: Path) -> None:
    for file in sorted((data / "xquad").glob("xquad.*.json")):
        questions = [asked.text for asked in read_questions(file)]
        began_s = time.perf_counter()
        told = Counter(map(language_of, questions))
        us = 1e6 * (time.perf_counter() - began_s) / len(questions)
        language = file.name.split(".")[1]
        right, unknown = told[language] / len(questions), told[""] / len(questions)
        print(f"language {language}: told {right:.1%}, not known {unknown:.1%}, {us:.0f} µs")


async def asked(stub: rpc.InferenceStub, model: str, question: str) -> tuple[float, float]:
    """Milliseconds to the first token, and those of the choice."""
    message = pb.GenerateRequest(model=model, text=question, sampling=pb.Sampling(max_tokens=1, seed=1))
    answer = await generate(stub, message)
    assert answer.outcome == "finished", answer
    assert answer.end is not None
    phases = answer.end.timeline.phases
    return answer.ttft_us / 1e3, sum(each.duration_us for each in phases if each.name == PHASE) / 1e3


async def measured(grpc: str, questions: list[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    async with connect(grpc) as stub:
        for turn in range(rounds + 1):
            for question in questions:
                for name, model in WAYS.items():
                    times = await asked(stub, model, f"{question} ({turn} {name})")
                    if turn:  # the first one warms up
                        found[name].append(times)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=60)
    options = parser.parse_args()
    data = data_dir()
    if data is None:
        parser.error("there is no test data here: set PENSTOCK_TEST_DATA to its folder")
    tell_languages(data)
    examples = examples_of(data)
    vectors = Embedder.load(threads=2).embed(examples.texts)
    trained = train_head(examples, lambda _: vectors, MODEL_NAME)
    compared = {
        WORDS: cross_validated_errors(examples, word_vectors(examples.texts)[1]),
        EMBEDDING: cross_validated_errors(examples, vectors),
    }
    print(comparison_words(compared))
    with tempfile.TemporaryDirectory(prefix="penstock-choice-") as folder:
        file = Path(folder) / "models.toml"
        file.write_text(RULES)
        write_difficulty_head(Path(folder) / "hard.safetensors", trained.head)
        write_difficulty_head(Path(folder) / "words.safetensors", train_word_head(examples).head)
        models = ("--model", f"small={MODEL}", "--model", f"large={MODEL}")
        environ = {
            "PENSTOCK_GATEWAY_VIRTUAL_MODELS": str(file),
            "PENSTOCK_GATEWAY_CLASSIFIER_WAIT_MS": "1000",
        }
        with Stack(*models, "--speculator", "0", "--retriever", "1", environ=environ) as stack:
            questions = [each.text for each in read_questions(data / "xquad" / "xquad.en.json")]
            found = asyncio.run(measured(stack.grpc, questions[: options.questions], options.rounds))
    for name, times in found.items():
        first, choice = ([each[at] for each in times] for at in (0, 1))
        print(
            f"{name:18} first token p50 {percentile(first, 0.5):6.2f} ms, p95 {percentile(first, 0.95):.2f}; "
            f"choice p50 {percentile(choice, 0.5):6.3f} ms, p95 {percentile(choice, 0.95):6.3f}"
        )


if __name__ == "__main__":
    main()
