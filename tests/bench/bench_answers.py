"""How well a model answers from retrieved passages: the documentation's questions, XQuAD, chats side by side.

    python -m tests.bench.bench_answers --model DIR [--adapter DIR] [--half all] [--passages page] [--order O]
    python -m tests.bench.bench_answers --url http://127.0.0.1:8000 [--served-model NAME]
    python -m tests.bench.bench_answers --model DIR --xquad FILE [--limit 200] [--found 3]
    python -m tests.bench.bench_answers --model DIR --chats FILE [--limit 10]

In process the way is that of a stack: the retriever's passages, the prompt, the model's chat template, greedy
answers; `--show` prints those of the open half. With `--url` it is a stack, which must serve these documents.
The half that is held out is scored without its answers. XQuAD's questions have their own passage, or with
`--found` so many that are found.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import torch

from services.gateway.config import GatewayConfig
from services.gateway.request.prompt_passages import near_places, standing_order
from services.gateway.request.retrieval_use import ORDERS, SHARED_PREFIX
from services.retriever.question import SearchAsk
from services.retriever.searcher import Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.engine import LLM, SamplingParams
from shared.messages import ChatTurn, Retrieve, Retrieved
from shared.retrieval.documents.passages import split_passages
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.retrieval.index.build import build_index
from shared.text.retrieval_prompt import retrieval_prompt
from shared.text.tokenizer import TextTokenizer
from tests.bench.document_questions import (
    DEVELOPMENT_NAME,
    YES_NO_NAME,
    DocumentQuestion,
    is_refusal,
    is_right,
    read_questions,
)
from tests.bench.squad_f1 import squad_f1

DOCUMENTS = Path(__file__).parents[2] / "shared" / "demo" / "documents"
RETRIEVED = 3
MAX_ANSWER_TOKENS = 80
MAX_CHAT_TOKENS = 200
HTTP_TIMEOUT_S = 120.0
HALVES = ("open", "held_out", "all", DEVELOPMENT_NAME, YES_NO_NAME)
PATIENCE_S = 600.0
LEAST_SHARE = GatewayConfig().passage_least_share


class AnsweringModel:
    """A model, with its adapter where there is one, answering greedily."""

    def __init__(self, model: Path, adapter: Path | None, threads: int) -> None:
        self._tokenizer = TextTokenizer.load(model)
        self._llm = LLM(model, threads=threads)
        self._adapter = ""
        if adapter is not None:
            self._adapter = adapter.name
            self._llm.load_adapter(adapter.name, adapter)

    def answer(self, requests: Sequence[str], max_tokens: int) -> list[str]:
        """The answers to user messages, each a chat of its own."""
        prompts = [self._tokenizer.encode_chat([ChatTurn("user", request)]) for request in requests]
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        answers = self._llm.generate(prompts, params, adapters=self._adapter)
        return [self._tokenizer.decode(answer.token_ids).strip() for answer in answers]


def document_passages(
    questions: Sequence[DocumentQuestion], passages: str, work: Path, order: str = SHARED_PREFIX
) -> list[tuple[str, ...]]:
    """Of each question the retriever's passages in that order, or with `page` those of the page that answers
    it."""
    embedder = Embedder.load(threads=1)
    index = build_index(
        str(DOCUMENTS), work / "index", embedder, lambda *_: None, waiting=lambda _: None
    ).index
    searcher, corpus = Searcher(QuestionVectors(embedder, 0)), ServedCorpus.of_index(index)
    found = [_searched(searcher, corpus, question.question, RETRIEVED, order) for question in questions]
    if passages == "retrieved":
        return found
    return [
        _page_passages(question.page) if question.page else hits
        for question, hits in zip(questions, found, strict=True)
    ]


def _searched(
    searcher: Searcher, corpus: ServedCorpus, question: str, count: int, order: str
) -> tuple[str, ...]:
    ask = SearchAsk(Retrieve(question, count, may_degrade=False), Deadline.after(PATIENCE_S), corpus)
    (answer,) = searcher.search_passages([ask])
    assert isinstance(answer, Retrieved), answer
    near = [answer.passages[place] for place in near_places(answer.passages, LEAST_SHARE)]
    return tuple(near[place].text for place in standing_order(near, order))


def _page_passages(page: str) -> tuple[str, ...]:
    text = (DOCUMENTS / page).read_text(encoding="utf-8")
    return tuple(passage.text for passage in split_passages(text, markdown=True))[:RETRIEVED]


def served_answer(url: str, model: str, question: str) -> str:
    """The answer of a stack that retrieves by itself."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": MAX_ANSWER_TOKENS,
        "penstock": {"retrieval": {"k": RETRIEVED, "may_degrade": False}},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
    return text


def served_model(url: str) -> str:
    """The first model that a stack serves."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=HTTP_TIMEOUT_S) as response:
        name: str = json.load(response)["data"][0]["id"]
    return name


def report_documents(questions: Sequence[DocumentQuestion], answers: Sequence[str], *, show: bool) -> None:
    """Counts by half; the answers of the open half where asked for."""
    pairs = list(zip(questions, answers, strict=True))
    for held_out in (False, True):
        half = [(question, answer) for question, answer in pairs if question.held_out == held_out]
        asked = [(question, answer) for question, answer in half if question.is_answerable]
        others = [(question, answer) for question, answer in half if not question.is_answerable]
        if half:
            print(
                f"{'held_out' if held_out else 'open':9}"
                f" right {sum(is_right(*pair) for pair in asked)} of {len(asked)},"
                f" refused {sum(is_refusal(answer) for _, answer in asked)} of these;"
                f" refused {sum(is_right(*pair) for pair in others)} of {len(others)} unanswerable;"
                f" mean {sum(len(answer.split()) for _, answer in half) / len(half):.1f} words"
            )
        for question, answer in half if show and not held_out else []:
            mark = "  " if is_right(question, answer) else "✗ "
            print(f"{mark}{question.id} {question.question} → {answer[:150]!r} ({question.answer})")


def xquad_rows(file: Path, limit: int) -> list[tuple[str, str, list[str]]]:
    """(passage, question, marked answers), evenly from all over the file."""
    rows = [
        (paragraph["context"], question["question"], [answer["text"] for answer in question["answers"]])
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return rows[:: max(1, len(rows) // limit)][:limit]


def xquad_passages(file: Path, questions: Sequence[str], count: int, order: str) -> list[tuple[str, ...]]:
    """Of each question so many passages, of all that the file has."""
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    embedder = Embedder.load(threads=1)
    with tempfile.TemporaryDirectory(prefix="penstock-answers-") as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, context in enumerate(contexts):
            (corpus / f"{number:03}.txt").write_text(context, encoding="utf-8")
        index = build_index(
            str(corpus), Path(folder, "index"), embedder, lambda *_: None, waiting=lambda _: None
        ).index
        searcher, searched = Searcher(QuestionVectors(embedder, 0)), ServedCorpus.of_index(index)
        return [_searched(searcher, searched, question, count, order) for question in questions]


def report_xquad(
    model: AnsweringModel,
    rows: Sequence[tuple[str, str, list[str]]],
    passages: Sequence[Sequence[str]],
    *,
    show: bool,
) -> None:
    """Mean F1 from these passages."""
    prompts = [retrieval_prompt(found, row[1]) for found, row in zip(passages, rows, strict=True)]
    answers = model.answer(prompts, MAX_ANSWER_TOKENS)
    scores = [squad_f1(answer, row[2]) for answer, row in zip(answers, rows, strict=True)]
    refused = sum(map(is_refusal, answers))
    print(f"XQuAD F1 {100 * sum(scores) / len(scores):.1f} over {len(scores)}; refused {refused}")
    for row, answer, score in zip(rows, answers, scores, strict=True) if show else []:
        print(f"{score:.2f} {row[1]} → {answer[:120]!r} ({row[2][0]})")


def report_chats(model: AnsweringModel, file: Path, limit: int) -> None:
    """First turns of MT-bench, evenly from all over the file, with the answers."""
    rows = [json.loads(line)["turns"][0] for line in file.read_text(encoding="utf-8").splitlines()]
    requests = rows[:: max(1, len(rows) // limit)][:limit]
    for request, answer in zip(requests, model.answer(requests, MAX_CHAT_TOKENS), strict=True):
        print(f"## {request}\n\n{answer}\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder or GGUF file of the model")
    parser.add_argument("--adapter", type=Path, help="folder of an adapter over it")
    parser.add_argument("--url", help="of a stack that serves these documents, instead of a folder")
    parser.add_argument("--served-model", help="the name to ask a stack for")
    parser.add_argument("--half", choices=HALVES, default="open")
    parser.add_argument("--passages", choices=("retrieved", "page"), default="retrieved")
    parser.add_argument("--order", choices=tuple(ORDERS.values()), default=SHARED_PREFIX, help="of passages")
    parser.add_argument(
        "--found", type=int, default=0, help="of XQuAD's passages to each question; 0: its own"
    )
    parser.add_argument("--xquad", type=Path, help="ask about the passages of this file instead")
    parser.add_argument("--chats", type=Path, help="answer the requests of this file instead")
    parser.add_argument("--limit", type=int, default=200, help="of XQuAD's questions, of chats")
    parser.add_argument("--show", action="store_true", help="print answers, but never those held out")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if (options.model is None) == (options.url is None):
        parser.error("give --model or --url")
    torch.set_num_threads(options.threads)
    questions = read_questions(options.half)
    if options.url:
        name = options.served_model or served_model(options.url)
        answers = [served_answer(options.url, name, question.question) for question in questions]
        report_documents(questions, answers, show=options.show)
        return
    model = AnsweringModel(options.model, options.adapter, options.threads)
    if options.xquad:
        rows = xquad_rows(options.xquad, options.limit)
        asked = [row[1] for row in rows]
        passages: Sequence[Sequence[str]] = [[row[0]] for row in rows]
        if options.found:
            passages = xquad_passages(options.xquad, asked, options.found, options.order)
        report_xquad(model, rows, passages, show=options.show)
    elif options.chats:
        report_chats(model, options.chats, min(options.limit, 10))
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-answers-") as folder:
            told = document_passages(questions, options.passages, Path(folder), options.order)
        requests = [
            retrieval_prompt(found, question.question)
            for found, question in zip(told, questions, strict=True)
        ]
        report_documents(questions, model.answer(requests, MAX_ANSWER_TOKENS), show=options.show)


if __name__ == "__main__":
    main()
