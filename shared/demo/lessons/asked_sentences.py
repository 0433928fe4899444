"""Sentences of Wikipedia and Wikinews with questions that people asked about them: the QAMR data set.

QAMR (Michael et al. 2018, arXiv:1711.05885; MIT) has tables whose answers are numbers of a sentence's words:
those of who asked and of two others who answered. A question is taken where two of the three mark the same
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from shared.demo.lessons.book_questions import BookPassage
from shared.demo.words import word_list

SENTENCES_FILE = "wiki-sentences.tsv"
MAX_PASSAGE_WORDS = 110
MAX_ANSWER_WORDS = 10
LEAST_AGREEING = 2
RUN_WORDS = 8
"""A text that shares so many words in a row with one to be kept apart from is left out."""

_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"'}
_CLOSING = re.compile(r"^(?:[.,;:!?%)\]}]|'s?|n't|'(?:re|ve|ll|d|m)|\.\.\.)$")
_OPENING = frozenset("([{$£€")
_WORD = re.compile(r"[a-z0-9]+")
_COMMON = frozenset(
    word_list("""
what when where which who whom whose how many much does did was were are is the that this there of in on
for to from with by and or a an it its his her their they he she do had has have be been will would can
""")
)


def asked_documents(folder: Path, apart: Sequence[str] = ()) -> list[list[BookPassage]]:
    """Read of each document of the tables in `folder` its passages with their questions.

    Passages that share RUN_WORDS words in a row with a text of `apart` are left out. Raises FileNotFoundError
    where there is no table.
    """
    sentences = dict(line.split("\t") for line in _lines(folder / SENTENCES_FILE))
    tables = sorted(path for path in folder.glob("*.tsv") if path.name != SENTENCES_FILE)
    if not tables:
        raise FileNotFoundError(f"no table of questions (*.tsv) beside {SENTENCES_FILE} in {folder}")
    pairs: dict[str, dict[str, str]] = {}
    for line in (line for table in tables for line in _lines(table)):
        sentence, _, _, _, _, question, *marked = line.split("\t")
        if sentence in sentences:  # those of the Penn Treebank are nobody's to give away
            answer = _agreed(sentences[sentence].split(" "), marked)
            if answer and is_askable(question, answer, written_text(sentences[sentence].split(" "))):
                pairs.setdefault(sentence, {}).setdefault(_closed(question), answer)
    taken = {run for text in apart for run in _runs(text)}
    documents = [
        [passage for passage in _passages(list(names), sentences, pairs) if not taken & _runs(passage.text)]
        for _, names in groupby(sorted(sentences, key=_place), key=lambda name: _place(name)[:2])
    ]
    return [document for document in documents if any(passage.questions for passage in document)]


def written_text(tokens: Sequence[str]) -> str:
    """`tokens` of a treebank as people write them."""
    text, is_open, quoted = "", True, False
    for token in tokens:
        word = _BRACKETS.get(token, token)
        closing = bool(_CLOSING.match(word))
        if word in ('"', "''"):
            word, closing, quoted = '"', quoted, not quoted
        text += word if is_open or closing else f" {word}"
        is_open = word in _OPENING or (word == '"' and quoted)
    return text


def is_askable(question: str, answer: str, sentence: str) -> bool:
    """Whether `sentence` can be known from the question, and has the answer as it stands."""
    about = [word for word in words_about(question) if word[:4] in sentence.lower()]
    return (
        len(question.split()) > 3
        and len(about) > 1
        and len(answer.split()) <= MAX_ANSWER_WORDS
        and answer in sentence
        and answer.lower() not in question.lower()
    )


def words_about(text: str) -> list[str]:
    """The words of `text` that say what it is about, in lower case."""
    return [word for word in _WORD.findall(text.lower()) if word not in _COMMON]


def _agreed(tokens: Sequence[str], marked: Sequence[str]) -> str | None:
    """The words that two of the three marked, where they stand in a row."""
    marks = [tuple(map(int, mark.rsplit(":", 1)[-1].split())) for mark in marked]
    for mark in marks:
        if mark and marks.count(mark) >= LEAST_AGREEING and mark[-1] - mark[0] == len(mark) - 1:
            words = tokens[mark[0] : mark[-1] + 1]
            return written_text(words).strip(" ,.;:") or None
    return None


def _passages(
    names: Sequence[str], sentences: dict[str, str], pairs: dict[str, dict[str, str]]
) -> Iterator[BookPassage]:
    """Sentences of one document in their order, so many as a passage has words."""
    window: list[str] = []
    for name in [*names, ""]:
        said = sum(len(sentences[other].split(" ")) for other in window)
        if window and (not name or said + len(sentences[name].split(" ")) > MAX_PASSAGE_WORDS):
            text = " ".join(written_text(sentences[other].split(" ")) for other in window)
            asked = [pair for other in window for pair in pairs.get(other, {}).items()]
            yield BookPassage(text, tuple(asked))
            window = []
        window.append(name)


def _closed(question: str) -> str:
    return question.strip().rstrip("?. ") + "?"


def _place(name: str) -> tuple[str, int, int, int]:
    """Order `Wiki1k:wikipedia:16016:90:8` by source and document, then paragraph, then sentence."""
    _, source, document, paragraph, sentence = name.split(":")
    return source, int(document), int(paragraph), int(sentence)


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {tuple(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1)}


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]
