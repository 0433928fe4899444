"""Questions with the document that answers each: XQuAD in its languages, the documentation pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.document_questions import read_questions

DOCUMENTS = Path(__file__).parents[2] / "services"
LANGUAGES = ("en", "de", "ru", "ar", "hi", "th", "zh")


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """`documents` are texts by name; `right` names the one that answers the question beside it."""

    name: str
    documents: dict[str, str]
    questions: tuple[str, ...]
    right: tuple[str, ...]


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
        tuple(name for _, name in asked),
    )


def documentation_set(half: str = "open") -> RetrievalSet:
    """The answerable questions, by default of the half that may be looked at; right is the page."""
    pages = sorted(DOCUMENTS.rglob("*.md"))
    asked = [question for question in read_questions(half) if question.is_answerable]
    return RetrievalSet(
        "documentation",
        {page.relative_to(DOCUMENTS).as_posix(): page.read_text(encoding="utf-8") for page in pages},
        tuple(question.question for question in asked),
        tuple(question.page for question in asked),
    )


def retrieval_sets(xquad: Path) -> Iterator[RetrievalSet]:
    """All of them, one after the other."""
    yield documentation_set()
    for language in LANGUAGES:
        yield xquad_set(xquad, language)
