"""How often a question's words find its passage, by language: XQuAD, 240 passages and 1,190 questions in
each.

    python -m tests.bench.bench_lexical [--data DIR]

Beside the terms of the lexical index stand those of a plain word regex. nDCG@10 of the one gold passage;
recall is the share of questions that have it among the first five.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

from shared.retrieval.index import lexical, term_counts
from shared.retrieval.index.lexical import LexicalIndex
from shared.retrieval.index.words import runs_of, terms_of_run
from tests.support.data import data_dir

LANGUAGES = ("en", "de", "ru", "ar", "hi", "zh", "th")
DEPTH = 10
RECALL_DEPTH = 5
WORD = re.compile(r"\w\w+")


def read_language(data: Path, language: str) -> tuple[list[str], list[tuple[str, int]]]:
    """The passages; questions, each with the number of its passage."""
    articles = json.loads((data / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [
        (question["question"], number)
        for number, paragraph in enumerate(paragraphs)
        for question in paragraph["qas"]
    ]
    return [paragraph["context"] for paragraph in paragraphs], asked


def scores_of(found: Sequence[Sequence[int]], gold: Sequence[int]) -> tuple[float, float]:
    """(nDCG@10, recall@5) of rows found for questions with one gold row each."""
    gain, recalled = 0.0, 0
    for rows, wanted in zip(found, gold, strict=True):
        place = list(rows).index(wanted) if wanted in rows else DEPTH
        gain += 1 / math.log2(place + 2) if place < DEPTH else 0.0
        recalled += place < RECALL_DEPTH
    return gain / len(gold), recalled / len(gold)


def measure(
    passages: list[str],
    asked: list[tuple[str, int]],
    runs: Callable[[str], list[str]],
    terms: Callable[[str], tuple[str, ...]],
) -> tuple[float, float]:
    """`terms` of each of the `runs` of a text."""

    def of_text(text: str) -> list[str]:
        return [term for run in runs(text) for term in terms(run)]

    counted = patch.multiple(term_counts, runs_of=runs, terms_of_run=terms)
    with counted, patch.object(lexical, "terms_of", of_text):
        index = LexicalIndex.build(passages)
        _, rows = index.search([question for question, _ in asked], DEPTH)
    return scores_of(rows.tolist(), [number for _, number in asked])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=data_dir(), help="folder that has xquad/")
    options = parser.parse_args()
    if options.data is None:
        parser.error("the XQuAD files are not here; name their folder with --data")
    print("language  nDCG@10  recall@5  a word regex: nDCG@10  recall@5")
    for language in LANGUAGES:
        passages, asked = read_language(options.data, language)
        ndcg, recall = measure(passages, asked, runs_of, terms_of_run)
        plain_ndcg, plain_recall = measure(
            passages, asked, lambda text: WORD.findall(text.lower()), lambda word: (word,)
        )
        print(
            f"{language:8}  {ndcg:.3f}    {recall:.3f}     {plain_ndcg:.3f}  {plain_recall:.3f}", flush=True
        )


if __name__ == "__main__":
    main()
