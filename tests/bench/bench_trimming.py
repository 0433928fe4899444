"""Measure what shorter passages save, and which answers they cost: XQuAD and the documentation's questions.

    python -m tests.bench.bench_trimming --xquad DIR [--language en] [--found 3] [--half reported]
    python -m tests.bench.bench_trimming --xquad DIR --model FILE [--adapter DIR] [--limit 200]
    python -m tests.bench.bench_trimming --questions development --model FILE [--adapter DIR]

Passages are those that a retriever finds, best first. Without a model it is counted how often the marked
answer still stands in what is left, of those that stood in the whole passages: by the sentences that are kept
here, by whole passages within as many tokens, and by the first sentences of each. With a model, in process
and greedy: the answers that are right (XQuAD: F1 too), and the time to the first token of each prompt alone,
shares in turns. Whatever was chosen was chosen by the other half of the articles (`--half tuned`) and by the
development questions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from services.gateway.config import GatewayConfig
from services.gateway.request.prompt_passages import near_places, standing_order
from services.gateway.request.retrieval_use import SHARED_PREFIX
from services.retriever.question import SearchAsk
from services.retriever.searcher import Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.engine import LLM, SamplingParams
from shared.messages import ChatTurn, Retrieve, Retrieved, ScoredPassage, Trimming
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.retrieval.index.build import build_index
from shared.text.default_model import find_default_model
from shared.text.passage_room import fitting_places
from shared.text.retrieval_prompt import passage_line, retrieval_prompt
from shared.text.tokenizer import TextTokenizer
from shared.trimming.passage_compression import compress_passages, trimming_budget
from shared.trimming.passage_sentences import passage_sentences
from tests.bench.bench_answers import DOCUMENTS, LEAST_SHARE, MAX_ANSWER_TOKENS
from tests.bench.document_questions import DEVELOPMENT_NAME, YES_NO_NAME, is_right, read_questions
from tests.bench.squad_f1 import squad_f1

SHARES = (1.0, 0.75, 0.5, 0.35, 0.25)
HALVES = {"tuned": (1,), "reported": (0,), "all": (0, 1)}
PATIENCE_S = 600.0
BLOCK = 20
"""The questions after which another share has its turn."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the passages that were found for it, best first; `is_right` judges an answer."""

    question: str
    passages: tuple[ScoredPassage, ...]
    marked: tuple[str, ...]
    is_right: Callable[[str], bool]

    @property
    def texts(self) -> list[str]:
        return [passage.text for passage in self.passages]


def search_all(folder: Path, questions: Sequence[str], count: int) -> list[tuple[ScoredPassage, ...]]:
    """Return the passages of each question that are near the best one, as a prompt would have them."""
    embedder = Embedder.load(threads=2)
    with tempfile.TemporaryDirectory(prefix="penstock-trimming-") as work:
        index = build_index(
            str(folder), Path(work, "index"), embedder, lambda *_: None, waiting=lambda _: None
        )
        searcher, corpus = Searcher(QuestionVectors(embedder, 0)), ServedCorpus.of_index(index.index)
        found = []
        for question in questions:
            ask = SearchAsk(Retrieve(question, count, may_degrade=False), Deadline.after(PATIENCE_S), corpus)
            (answer,) = searcher.search_passages([ask])
            assert isinstance(answer, Retrieved), answer
            near = near_places(answer.passages, LEAST_SHARE)
            found.append(tuple(answer.passages[at] for at in near))
    return found


def xquad_questions(folder: Path, language: str, half: str, limit: int, count: int) -> list[Asked]:
    """Questions evenly from the articles of a half; their passages are found among those of all articles."""
    articles = json.loads((folder / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    rows = [
        (row["question"], tuple(answer["text"] for answer in row["answers"]))
        for number, article in enumerate(articles)
        if number % 2 in HALVES[half]
        for paragraph in article["paragraphs"]
        for row in paragraph["qas"]
    ]
    rows = rows[:: max(1, len(rows) // limit)][:limit]
    with tempfile.TemporaryDirectory(prefix="penstock-xquad-") as corpus:
        for number, context in enumerate(contexts):
            Path(corpus, f"{number:03}.txt").write_text(context, encoding="utf-8")
        found = search_all(Path(corpus), [question for question, _ in rows], count)
    return [
        Asked(question, passages, marked, lambda answer, marked=marked: _has(answer, marked))  # type: ignore[misc]
        for (question, marked), passages in zip(rows, found, strict=True)
    ]


def document_questions(half: str, count: int) -> list[Asked]:
    questions = read_questions(half)
    found = search_all(DOCUMENTS, [each.question for each in questions], count)
    return [
        Asked(each.question, passages, (), lambda answer, each=each: is_right(each, answer))  # type: ignore[misc]
        for each, passages in zip(questions, found, strict=True)
    ]


def _has(text: str, marked: Sequence[str]) -> bool:
    plain = " ".join(text.lower().split())
    return any(" ".join(answer.lower().split()) in plain for answer in marked)


# ---- ways to shorten -------------------------------------------------------------------------------------


class Shortener:
    """Three ways to have passages within a share of their tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode_text(text, add_special_tokens=False))

    def line(self, text: str) -> int:
        return self.count(f"{passage_line(1, text)}\n") if text else 0

    def by_sentences(self, asked: Asked, share: float) -> list[str]:
        left = compress_passages(asked.texts, asked.question, Trimming(passage_share=share), self.count)
        return list(left.texts)

    def by_passages(self, asked: Asked, share: float) -> list[str]:
        sizes = [self.line(text) for text in asked.texts]
        room = trimming_budget(Trimming(passage_share=share), sum(sizes))
        fitting = fitting_places(sizes, room)
        return [text if at in fitting else "" for at, text in enumerate(asked.texts)]

    def by_beginnings(self, asked: Asked, share: float) -> list[str]:
        left = []
        for text in asked.texts:
            room, end = int(share * self.line(text)), 0
            for sentence in passage_sentences([text]):
                if self.line(text[: sentence.span.end]) > room:
                    break
                end = sentence.span.end
            left.append(text[:end])
        return left

    def tokens(self, texts: Sequence[str]) -> int:
        return sum(map(self.line, texts))


def report_kept(asked: Sequence[Asked], shortener: Shortener, shares: Sequence[float]) -> None:
    """Print how many of the answers that stood in the passages are left."""
    there = [each for each in asked if _has("\n".join(each.texts), each.marked)]
    print(f"{len(there)} of {len(asked)} marked answers stand in the passages found")
    print("share  sentences      passages       beginnings     (answers left, tokens left)")
    for share in shares:
        cells = []
        for way in (shortener.by_sentences, shortener.by_passages, shortener.by_beginnings):
            left = [way(each, share) for each in there]
            kept = sum(_has("\n".join(texts), each.marked) for texts, each in zip(left, there, strict=True))
            tokens = sum(map(shortener.tokens, left)) / sum(shortener.tokens(each.texts) for each in there)
            cells.append(f"{kept / len(there):6.1%} {tokens:6.1%}")
        print(f"{share:4.2f}  {'  '.join(cells)}")


# ---- with a model ----------------------------------------------------------------------------------------


def prompt_of(asked: Asked, texts: Sequence[str], tokenizer: TextTokenizer) -> list[int]:
    """Return the prompt of a question with what is left of its passages."""
    order = [at for at in standing_order(asked.passages, SHARED_PREFIX) if texts[at]]
    told = asked.question
    if order:
        told = retrieval_prompt([texts[at] for at in order], asked.question, tokenizer.retrieval_form)
    return tokenizer.encode_chat([ChatTurn("user", told)])


def report_answers(
    asked: Sequence[Asked], shortener: Shortener, llm: LLM, adapter: str, shares: Sequence[float]
) -> None:
    """Print right answers and times by share."""
    tokenizer = shortener.tokenizer
    prompts = {
        share: [prompt_of(each, shortener.by_sentences(each, share), tokenizer) for each in asked]
        for share in shares
    }
    first_ms: dict[float, list[float]] = {share: [] for share in shares}
    one = SamplingParams(temperature=0.0, max_tokens=1)
    for begin in range(0, len(asked), BLOCK):
        for share, of in prompts.items():
            for prompt in of[begin : begin + BLOCK]:
                start_s = time.perf_counter()
                llm.generate([prompt], one, adapters=adapter)
                first_ms[share].append(1e3 * (time.perf_counter() - start_s))
    print("share  prompt tokens  first token p50, p99 ms  right      F1")
    params = SamplingParams(temperature=0.0, max_tokens=MAX_ANSWER_TOKENS)
    for share, of in prompts.items():
        answers = llm.generate(of, params, adapters=adapter)
        said = [tokenizer.decode(answer.token_ids).strip() for answer in answers]
        right = sum(each.is_right(answer) for each, answer in zip(asked, said, strict=True))
        pairs = [(answer, each.marked) for each, answer in zip(asked, said, strict=True) if each.marked]
        f1 = f"{100 * statistics.fmean(squad_f1(*pair) for pair in pairs):.1f}" if pairs else "-"
        p99 = statistics.quantiles(first_ms[share], n=100)[98]
        print(
            f"{share:4.2f}  {statistics.fmean(map(len, of)):13.0f}"
            f"  {statistics.median(first_ms[share]):13.1f} {p99:8.1f}"
            f"  {right:4} of {len(asked)}  {f1}",
            flush=True,
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, help="folder of XQuAD's files")
    parser.add_argument("--language", default="en")
    parser.add_argument("--half", choices=HALVES, default="reported", help="of XQuAD's articles")
    parser.add_argument(
        "--questions",
        choices=("open", "held_out", "all", DEVELOPMENT_NAME, YES_NO_NAME),
        help="about the documentation, in place of XQuAD's",
    )
    parser.add_argument("--found", type=int, default=GatewayConfig().retrieval_passages)
    parser.add_argument("--limit", type=int, default=600, help="of XQuAD's questions")
    parser.add_argument("--model", type=Path, help="folder or GGUF file of the model that answers")
    parser.add_argument("--adapter", type=Path, help="folder of an adapter over it")
    parser.add_argument(
        "--share", type=float, action="append", help=f"of tokens; {SHARES} where none is said"
    )
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if (options.xquad is None) == (options.questions is None):
        parser.error("give --xquad or --questions")
    torch.set_num_threads(options.threads)
    file = options.model or find_default_model()
    if file is None:
        parser.error("give --model: the default one is not installed")
    shares = options.share or SHARES
    shortener = Shortener(TextTokenizer.load(file))
    if options.questions:
        asked = document_questions(options.questions, options.found)
    else:
        asked = xquad_questions(options.xquad, options.language, options.half, options.limit, options.found)
    if options.model is None:
        report_kept(asked, shortener, [share for share in shares if share < 1])
        return
    llm, adapter = LLM(options.model, threads=options.threads, prefix_cache=False), ""
    if options.adapter is not None:
        adapter = options.adapter.name
        llm.load_adapter(adapter, options.adapter)
    report_answers(asked, shortener, llm, adapter, shares)


if __name__ == "__main__":
    main()
