"""Time to the first token of answers from passages, with what is computed while these are found and without.

    python -m tests.bench.bench_overlap [--corpus docs|books] [--books DIR] [--passages N]
        [--reranker none|late-interaction|kept|changed] [--rounds N] [--history-words N]

A stack with three gateways of one fleet, which are asked in turns: one warms nothing, one the head of a
prompt, one the likely prompt. No question is asked twice, and every chat has a history of its own, so that
nothing of a prompt is cached. `kept` and `changed` are cross-encoders of MiniLM's shape with random weights:
one leaves the passages in their order, one does not. Model: SmolLM2, or --model.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import secrets
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.retrieval_use import WARM_HEAD, WARM_LIKELY, WARM_MODES, WARM_OFF
from shared.retrieval.documents.passages import split_passages
from shared.text.default_model import packaged_file
from tests.bench.document_questions import read_questions
from tests.support.client import connect, generate
from tests.support.cross_encoder import save_cross_encoder
from tests.support.data import REPOSITORY
from tests.support.other_gateway import OtherGateway, open_nats
from tests.support.percentile import percentile
from tests.support.stack import Stack

NONE, KEPT, CHANGED = "none", "kept", "changed"
RERANKERS = (NONE, "late-interaction", KEPT, CHANGED)
WARM_UP_ROUNDS = 2
PAUSE_S = 0.05
"""The pause between two requests: what the last one has changed is known to all by then."""
CALL_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one request."""

    ttft_ms: float
    retrieve_ms: float
    cached_tokens: int
    prompt_tokens: int


def copy_books(books: Path, folder: Path, passages: int) -> list[str]:
    """Whole books until there are so many passages; sentences out of them to ask for."""
    sentences: list[str] = []
    count = 0
    for book in sorted(books.rglob("*.md")):
        if count >= passages:
            break
        text = book.read_text(encoding="utf-8", errors="replace")
        count += len(split_passages(text, markdown=True))
        (folder / book.name).write_text(text, encoding="utf-8")
        sentences += re.findall(r"[A-Z][a-z][^.!?\"\n]{40,120}[.?]", text)
    random.Random(1).shuffle(sentences)
    return sentences


def questions_of(corpus: str, options: argparse.Namespace, folder: Path) -> tuple[str, Iterator[str]]:
    """What is indexed, and questions about it without end."""
    if corpus == "docs":
        asked = [question.question for question in read_questions("all")]
        documents = REPOSITORY / "shared" / "demo" / "documents"
        return str(documents), (f"{each} ({n})" for n in range(1000) for each in asked)
    folder.mkdir()
    return str(folder), iter(copy_books(Path(options.books), folder, options.passages))


def message_of(question: str, history_words: int, number: int) -> pb.GenerateRequest:
    """The history is of words that no other one has in this order."""
    words = random.Random(number).choices(("river", "lamp", "stone", "green", "seven"), k=history_words)
    message = pb.GenerateRequest()
    message.chat.messages.add(role="system", content=f"{number}. {' '.join(words)}")
    message.chat.messages.add(role="user", content=question)
    message.retrieval.enabled = True
    message.sampling.CopyFrom(pb.Sampling(temperature=0.0, max_tokens=1, ignore_eos=True))
    message.ttft_deadline_ms = message.deadline_ms = round(1000 * CALL_TIMEOUT_S)
    return message


async def ask(address: str, message: pb.GenerateRequest) -> Asked:
    async with connect(address) as stub:
        answer = await generate(stub, message, CALL_TIMEOUT_S)
    if answer.outcome != "finished" or answer.end is None or answer.prompt is None:
        raise SystemExit(f"a request ended as {answer.outcome}: {answer.details}")
    if answer.prompt.degraded:
        raise SystemExit(f"an answer went without {answer.prompt.degraded}: give it more time")
    found_us = sum(phase.duration_us for phase in answer.end.timeline.phases if phase.name == "retrieve")
    usage = answer.end.usage
    return Asked(answer.ttft_us / 1e3, found_us / 1e3, usage.cached_tokens, usage.prompt_tokens)


async def measure(
    gateways: Mapping[str, str], questions: Iterator[str], options: argparse.Namespace
) -> dict[str, list[Asked]]:
    """By mode. Every round asks all gateways, each time another one first."""
    found: defaultdict[str, list[Asked]] = defaultdict(list)
    number = 0
    for turn in range(-WARM_UP_ROUNDS, options.rounds):
        modes = list(gateways)
        for mode in modes[turn % 3 :] + modes[: turn % 3]:
            number += 1
            asked = await ask(gateways[mode], message_of(next(questions), options.history_words, number))
            await asyncio.sleep(PAUSE_S)
            if turn >= 0:
                found[mode].append(asked)
    return found


def report(found: Mapping[str, Sequence[Asked]]) -> None:
    plain = statistics.median(asked.ttft_ms for asked in found[WARM_OFF])
    print(f"{'':8} {'TTFT p50':>10} {'p90':>8} {'ratio':>6} {'retrieval':>10} {'cached':>8} {'prompt':>8}")
    for mode, asked in found.items():
        ttft = [each.ttft_ms for each in asked]
        retrieve_ms = statistics.median(each.retrieve_ms for each in asked)
        cached = statistics.mean(each.cached_tokens for each in asked)
        prompt = statistics.mean(each.prompt_tokens for each in asked)
        median = statistics.median(ttft)
        print(
            f"{mode:8} {median:7.1f} ms {percentile(ttft, 0.9):8.1f} {median / plain:6.2f} "
            f"{retrieve_ms:7.1f} ms {cached:8.0f} {prompt:8.0f}",
            flush=True,
        )


def run(options: argparse.Namespace, work: Path) -> None:
    corpus, questions = questions_of(options.corpus, options, work / "books")
    reranker = {NONE: "", "late-interaction": "late-interaction"}.get(options.reranker)
    if reranker is None:
        keeps = options.reranker == KEPT
        shape = {"hidden_size": 384, "layers": 6, "positions": 512}
        reranker = str(save_cross_encoder(work / "reranker", keeps_order=keeps, **shape))
    fleet_key = secrets.token_hex(32)
    environ = {
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "PENSTOCK_FLEET_KEY": fleet_key,
        "PENSTOCK_RETRIEVER_RERANKER": reranker,
        "PENSTOCK_GATEWAY_WARM_WHILE_RETRIEVING": WARM_OFF,
    }
    up = ("--model", options.model, "--draft", "none", "--speculator", "0", "--corpus", corpus)
    with ExitStack() as running:
        url = running.enter_context(open_nats())
        stack = running.enter_context(Stack("--nats-url", url, *up, environ=environ))
        gateways = {WARM_OFF: stack.grpc}
        for mode in (WARM_HEAD, WARM_LIKELY):
            other = OtherGateway(url, fleet_key, warm_while_retrieving=mode)
            gateways[mode] = running.enter_context(other).grpc
        found = asyncio.run(measure(gateways, questions, options))
    print(f"{options.corpus}, reranker: {options.reranker}, {options.rounds} rounds")
    report({mode: found[mode] for mode in WARM_MODES})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", choices=("docs", "books"), default="docs")
    parser.add_argument("--books", default="", help="folder of Markdown files, for --corpus books")
    parser.add_argument("--passages", type=int, default=20_000, help="of books")
    parser.add_argument("--reranker", choices=RERANKERS, default=KEPT)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--history-words", type=int, default=100)
    parser.add_argument("--model", default=str(packaged_file() or ""), help="SmolLM2 where it is installed")
    options = parser.parse_args()
    if not options.model:
        parser.error("SmolLM2 is not installed: name a --model")
    if options.corpus == "books" and not options.books:
        parser.error("--corpus books needs --books DIR")
    with tempfile.TemporaryDirectory(prefix="penstock-overlap-") as work:
        run(options, Path(work))


if __name__ == "__main__":
    main()
