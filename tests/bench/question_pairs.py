"""Pairs of questions that one answer is right for, and pairs that look alike and have two: from XQuAD."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

NUMBER = re.compile(r"\d+")
NAME = re.compile(r"(?<=\s)[A-Z][a-z]+(?:'s)?")
SEED = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of XQuAD, about its `paragraph`; the same `id` in every language."""

    id: str
    paragraph: int
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """`kind` says how it was made."""

    kind: str
    one: str
    other: str


def read_questions(file: Path) -> list[Asked]:
    paragraphs = [each for article in json.loads(file.read_text())["data"] for each in article["paragraphs"]]
    return [
        Asked(found["id"], number, found["question"].strip(), found["answers"][0]["text"].strip().casefold())
        for number, paragraph in enumerate(paragraphs)
        for found in paragraph["qas"]
    ]


def rewritten(questions: Sequence[Asked]) -> Iterator[QuestionPair]:
    """Put in other words that ask the same."""
    for asked in questions:
        text = asked.text
        bare = text.rstrip("?. ")
        lowered = bare[0].lower() + bare[1:]
        ways = [
            f"Please tell me: {lowered}?",
            f"I would like to know {lowered}.",
            bare.lower(),
            bare.upper() + "?",
            f"{text} Thanks!",
        ]
        for old, new in (
            ("What is ", "What's "), ("Which ", "What "), ("How many ", "What number of "),
            ("In what year ", "When "), ("What year ", "When "), ("In which ", "In what "), (" located", ""),
            ("What was the name of ", "What was "), ("What kind of ", "What type of "),
        ):  # fmt: skip
            if old in text:
                ways.append(text.replace(old, new, 1))
        yield from (QuestionPair("rewritten", text, way) for way in ways)


def same_answer(questions: Sequence[Asked]) -> Iterator[QuestionPair]:
    """Questions about one paragraph that have one answer: what people wrote who did not see each other's."""
    for one, other in _of_one_paragraph(questions):
        if one.answer == other.answer:
            yield QuestionPair("same answer", one.text, other.text)


def neighbours(questions: Sequence[Asked]) -> Iterator[QuestionPair]:
    """Questions about one paragraph with different answers."""
    for one, other in _of_one_paragraph(questions):
        if one.answer != other.answer and one.answer not in other.answer and other.answer not in one.answer:
            yield QuestionPair("same paragraph", one.text, other.text)


def edited(questions: Sequence[Asked]) -> Iterator[QuestionPair]:
    """With another number or name, or negated; also as people type who use no capitals."""
    draw = random.Random(SEED)
    names = sorted({name for asked in questions for name in NAME.findall(asked.text)})
    for asked in questions:
        text = asked.text
        made: list[tuple[str, str]] = []
        if found := NUMBER.search(text):
            number = str(int(found[0]) + 1)
            made.append(("other number", text[: found.start()] + number + text[found.end() :]))
        if found := NAME.search(text):
            other = draw.choice([name for name in names if name != found[0]])
            made.append(("other name", text[: found.start()] + other + text[found.end() :]))
        for verb in (" is ", " are ", " was ", " were ", " did ", " does ", " do ", " can ", " has "):
            if verb in text:
                made.append(("negated", text.replace(verb, f"{verb}not ", 1)))
                break
        for kind, new in made:
            yield QuestionPair(kind, text, new)
            yield QuestionPair(f"{kind}, no capitals", text.lower(), new.lower())


def translated(questions: Sequence[Asked], others: Sequence[Asked]) -> Iterator[QuestionPair]:
    """The same question in another language, whose answer is to be in that one."""
    by_id = {asked.id: asked.text for asked in others}
    yield from (QuestionPair("translated", asked.text, by_id[asked.id]) for asked in questions)


def _of_one_paragraph(questions: Sequence[Asked]) -> Iterator[tuple[Asked, Asked]]:
    for number in sorted({asked.paragraph for asked in questions}):
        yield from combinations([asked for asked in questions if asked.paragraph == number], 2)
