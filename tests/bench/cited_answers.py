"""Answers whose support is known by how they were made, from XQuAD's passages and questions."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shared.retrieval.citing.sentences import TextSpan, sentence_spans

SEED = 12
OTHER_PASSAGES = 3
"""The passages beside the right one in each prompt; the first two are of the same article."""
NOWHERE = 0
NO_SPAN = TextSpan(0, 0)
_NUMBER = re.compile(r"(?<![\w.,])\d+(?![\w.,]\d)")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}")
_VERBS = "is|was|are|were"
_HELPS = re.compile("is|was|are|were|did|does|do|has|had|have|can|could|would|will|may|must|should")


@dataclass(frozen=True, slots=True)
class LabelledSentence:
    """`passage` is the place, from 1, of the one that supports it in the characters `span`, NOWHERE where
    none does. `kind` says how it was made."""

    kind: str
    text: str
    passage: int = NOWHERE
    span: TextSpan = NO_SPAN


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    question: str
    passages: tuple[str, ...]
    sentences: tuple[LabelledSentence, ...]

    @property
    def text(self) -> str:
        return " ".join(sentence.text for sentence in self.sentences)


@dataclass(frozen=True, slots=True)
class AskedPassage:
    article: int
    text: str
    asked: tuple[tuple[str, str, int], ...]
    """Question, answer, and where the answer begins."""


def labelled_answers(file: Path, half: int, count: int) -> list[LabelledAnswer]:
    """`half` 0 is what is learned from, articles with an even number, 1 what is reported, the others."""
    draw = random.Random(SEED + half)
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    passages = [
        AskedPassage(
            number,
            paragraph["context"],
            tuple(
                (row["question"], row["answers"][0]["text"], row["answers"][0]["answer_start"])
                for row in paragraph["qas"]
            ),
        )
        for number, article in enumerate(articles)
        if number % 2 == half
        for paragraph in article["paragraphs"]
    ]
    chosen = draw.sample(passages, min(count, len(passages)))
    return [_answer(passage, passages, draw) for passage in chosen]


def _answer(passage: AskedPassage, passages: Sequence[AskedPassage], draw: random.Random) -> LabelledAnswer:
    """Two or three sentences that the passage supports, two that nothing in the prompt does, and one that
    says two in a row of the passage."""
    same = [each for each in passages if each.article == passage.article and each is not passage]
    other = [each for each in passages if each.article != passage.article]
    beside = draw.sample(same, min(3, len(same)))
    elsewhere, shown = beside[-1], [*beside[:-1], draw.choice(other)]
    texts = [passage.text, *(each.text for each in shown)]
    draw.shuffle(texts)
    place = texts.index(passage.text) + 1
    supported = [
        _verbatim(passage, place, draw),
        _reworded(passage, place, draw),
        *_told(passage, place, draw),
    ]
    unsupported = [
        LabelledSentence("elsewhere", draw.choice(_sentences(elsewhere.text))),
        *_altered(passage, other, draw),
        *_swapped(passage, draw),
        LabelledSentence("generic", "I hope that this answers your question."),
    ]
    sentences = draw.sample(supported, min(len(supported), 3)) + draw.sample(unsupported, 2)
    draw.shuffle(sentences)
    sentences += _joined(passage, place, random.Random(passage.text))
    return LabelledAnswer(passage.asked[0][0], tuple(texts), tuple(sentences))


def _verbatim(passage: AskedPassage, place: int, draw: random.Random) -> LabelledSentence:
    span = draw.choice(_long_spans(passage.text))
    return LabelledSentence("verbatim", _ended(span.of(passage.text)), place, span)


def _reworded(passage: AskedPassage, place: int, draw: random.Random) -> LabelledSentence:
    """Without its parentheses, its first part at the end."""
    span = draw.choice(_long_spans(passage.text))
    bare = re.sub(r"\s*\([^)]*\)", "", span.of(passage.text)).rstrip(".!? ")
    head, comma, tail = bare.partition(", ")
    moved = f"{tail[0].upper()}{tail[1:]}, {head}." if comma and len(tail) > len(head) else f"{bare}."
    return LabelledSentence("reworded", f"According to the text, {moved}", place, span)


def _joined(passage: AskedPassage, place: int, draw: random.Random) -> list[LabelledSentence]:
    """Two sentences in a row as one, where the passage has two."""
    pairs = list(pairwise(_long_spans(passage.text)))
    if not pairs:
        return []
    one, other = draw.choice(pairs)
    first, second = one.of(passage.text).rstrip(".!? "), other.of(passage.text)
    text = _ended(f"{first}, and {second[0].lower()}{second[1:]}")
    return [LabelledSentence("joined", text, place, TextSpan(one.start, other.end))]


def _told(passage: AskedPassage, place: int, draw: random.Random) -> Iterator[LabelledSentence]:
    """Somebody's question with its answer, as a sentence."""
    told = [(text, at) for question, answer, at in passage.asked if (text := statement(question, answer))]
    if told:
        text, at = draw.choice(told)
        spans = sentence_spans(passage.text, 99)
        yield LabelledSentence("told", text, place, next(span for span in spans if at < span.end))


def _altered(
    passage: AskedPassage, other: Sequence[AskedPassage], draw: random.Random
) -> Iterator[LabelledSentence]:
    """With another number, or another name."""
    texts = [span.of(passage.text) for span in _long_spans(passage.text)]
    draw.shuffle(texts)
    for text in texts:
        if found := _NUMBER.search(text):
            number = str(int(found[0]) + draw.randint(3, 9))
            if number not in passage.text:
                yield LabelledSentence("number", _ended(text[: found.start()] + number + text[found.end() :]))
                break
    for text in texts:
        if found := _NAME.search(text):
            names = _NAME.findall(draw.choice(other).text)
            if names and (name := draw.choice(names)) not in passage.text:
                yield LabelledSentence("name", _ended(text[: found.start()] + name + text[found.end() :]))
                break


def _swapped(passage: AskedPassage, draw: random.Random) -> Iterator[LabelledSentence]:
    """A question with the answer to another one about the passage."""
    told = [
        text
        for question, right, _ in passage.asked
        for _, answer, _ in passage.asked
        if answer not in right and right not in answer and (text := statement(question, answer))
    ]
    if told:
        yield LabelledSentence("swapped", draw.choice(told))


def statement(question: str, answer: str) -> str:
    """Say a question and its answer in one sentence; "" where no rule fits."""
    asked = " ".join(question.split()).rstrip("? ")
    if found := re.fullmatch(rf"(?:What|Who|Which \w+) ({_VERBS}) (.+)", asked):
        return _ended(f"{found[2][0].upper()}{found[2][1:]} {found[1]} {answer}")
    found = re.fullmatch(r"(?:What|Who|Which \w+) (\w+) (.+)", asked)
    if found and not _HELPS.fullmatch(found[1]) and found[1].endswith(("ed", "s", "t", "d", "e")):
        return _ended(f"{answer[0].upper()}{answer[1:]} {found[1]} {found[2]}")
    if found := re.fullmatch(
        r"(?:When|In what year|Where) (was|were) (.+) (\w+ed|born|built|held|made)", asked
    ):
        return _ended(f"{found[2][0].upper()}{found[2][1:]} {found[1]} {found[3]} in {answer}")
    return ""


def _sentences(text: str) -> list[str]:
    return [_ended(span.of(text)) for span in _long_spans(text)]


def _long_spans(text: str) -> list[TextSpan]:
    spans = sentence_spans(text, 99)
    return [span for span in spans if len(span.of(text).split()) > 5] or spans


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?", '"', "”")) else f"{text}."
