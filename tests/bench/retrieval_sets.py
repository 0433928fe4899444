"""Questions with the documents that answer them: XQuAD in its languages, the documentation pages, and any set
in the form of BEIR (Thakur et al. 2021, arXiv:2104.08663)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.document_questions import read_questions
from tests.bench.ranking_scores import Gains

DOCUMENTS = Path(__file__).parents[2] / "shared" / "demo" / "documents"
CORPUS_NAME = "corpus.jsonl"
LANGUAGES = ("en", "de", "ru", "ar", "hi", "th", "zh")


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """`documents` are texts by name; `gains` says which of them answer the question beside it, and what each
    of these is worth."""

    name: str
    documents: dict[str, str]
    questions: tuple[str, ...]
    gains: tuple[Gains, ...]

    @property
    def right(self) -> tuple[str, ...]:
        """Of each question the first document that answers it."""
        return tuple(next(iter(of)) for of in self.gains)


def xquad_set(folder: Path, language: str) -> RetrievalSet:
    """240 passages of Wikipedia with 1,190 questions, the same ones in every language."""
    articles = json.loads((folder / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    named = {f"{number:03}.txt": paragraph for number, paragraph in enumerate(paragraphs)}
    asked = [(row["question"], name) for name, paragraph in named.items() for row in paragraph["qas"]]
    return RetrievalSet(
        f"xquad-{language}",
        {name: paragraph["context"] for name, paragraph in named.items()},
        tuple(question for question, _ in asked),
        tuple({name: 1.0} for _, name in asked),
    )


def documentation_set(half: str = "open") -> RetrievalSet:
    """The answerable questions, by default of the half that may be looked at; right is the page."""
    pages = sorted(DOCUMENTS.rglob("*.md"))
    asked = [question for question in read_questions(half) if question.is_answerable]
    return RetrievalSet(
        "documentation",
        {page.relative_to(DOCUMENTS).as_posix(): page.read_text(encoding="utf-8") for page in pages},
        tuple(question.question for question in asked),
        tuple({question.page: 1.0} for question in asked),
    )


def beir_set(folder: Path) -> RetrievalSet:
    """Of a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv: the questions that have an answer."""
    gains: dict[str, dict[str, float]] = {}
    for line in _lines(folder / "qrels" / "test.tsv")[1:]:
        question, document, gain = line.split("\t")
        if float(gain) > 0:
            gains.setdefault(question, {})[f"{CORPUS_NAME}#{document}"] = float(gain)
    rows = [json.loads(line) for line in _lines(folder / "queries.jsonl")]
    texts = {row["_id"]: row["text"] for row in rows if row["_id"] in gains}
    return RetrievalSet(
        folder.name,
        {CORPUS_NAME: (folder / CORPUS_NAME).read_text(encoding="utf-8")},
        tuple(texts.values()),
        tuple(gains[question] for question in texts),
    )


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def retrieval_sets(xquad: Path) -> Iterator[RetrievalSet]:
    """All of them, one after the other."""
    yield documentation_set()
    for language in LANGUAGES:
        yield xquad_set(xquad, language)
