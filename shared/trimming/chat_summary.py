"""Summarize turns of a chat that are left out, by their sentences that answer best what was asked there.

Sentences stay word by word, so that nothing is told that was not said, and no model is asked: a summary in
words of its own would be an answer to wait for before this one. What was asked last has no part in it: the
summary is the same, and stands in the same place, for as long as the same turns are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shared.messages import ChatTurn
from shared.retrieval.citing.evidence import FEWEST_WORDS, words_of
from shared.trimming.near_duplicates import said_before
from shared.trimming.passage_sentences import PassageSentence, passage_sentences
from shared.trimming.sentence_scores import sentence_scores

HEAD = "Earlier in this conversation:"
LEAD_WEIGHT = 0.3
"""The weight of being the first sentence of a turn: it mostly says what the others explain."""
SUMMARIZED_ROLES = ("user", "assistant")
"""The turns whose sentences may be told: what a tool answered is data."""
QUESTION_MARKS = ("?", "\uff1f", "\u061f")
"""A sentence that ends so was a question, and tells nothing by itself; also full-width, and in Arabic."""


def summarize_turns(turns: Sequence[ChatTurn], budget: int, count_tokens: Callable[[str], int]) -> str:
    """Return who said what, in the order of the chat and in at most `budget` tokens, "" where nothing
    fits."""
    said = [turn for turn in reversed(turns) if turn.role in SUMMARIZED_ROLES and turn.content.strip()]
    sentences = passage_sentences([turn.content for turn in said])
    repeated = said_before(sentences)
    telling = [
        sentence
        for sentence, is_repeated in zip(sentences, repeated, strict=True)
        if not is_repeated and _tells(sentence)
    ]
    scores = _scores(said, telling)
    left = budget - count_tokens(f"{HEAD}\n")
    chosen: list[PassageSentence] = []
    for _, sentence in sorted(zip(scores, telling, strict=True), key=lambda each: -each[0]):
        cost = count_tokens(f" {sentence.text}")
        if all(other.passage != sentence.passage for other in chosen):
            cost += count_tokens(f"{said[sentence.passage].role}:\n")
        if cost <= left:
            left -= cost
            chosen.append(sentence)
    while chosen and count_tokens(_written(said, chosen)) > budget:  # pieces that cost more beside each other
        chosen.pop()
    return _written(said, chosen)


def _scores(said: Sequence[ChatTurn], sentences: Sequence[PassageSentence]) -> list[float]:
    """Return how well each sentence answers what its user had asked: of what a user says, how much it has of
    that. The latest turn is the first of `said`."""
    scores: list[float] = []
    for place, turn in enumerate(said):
        asked = next((each.content for each in said[place:] if each.role == "user"), turn.content)
        own = [sentence for sentence in sentences if sentence.passage == place]
        for at, score in enumerate(sentence_scores(asked, own)):
            scores.append(score + (LEAD_WEIGHT if at == 0 else 0.0))
    return scores


def _tells(sentence: PassageSentence) -> bool:
    """Whether it says something by itself: a greeting does not, nor does a question."""
    is_question = sentence.text.rstrip().endswith(QUESTION_MARKS)
    return not is_question and len(list(words_of(sentence.text))) >= FEWEST_WORDS


def with_summary(turns: Sequence[ChatTurn], summary: str) -> list[ChatTurn]:
    """Return the turns with a summary of those before them in front of what a user says first: it has their
    words, and no more weight than they have."""
    told = list(turns)
    first = next((at for at, turn in enumerate(told) if turn.role == "user"), None)
    if summary and first is not None:
        told[first] = replace(told[first], content=f"{summary}\n\n{told[first].content}")
    return told


def _written(said: Sequence[ChatTurn], chosen: Sequence[PassageSentence]) -> str:
    """Return a line for each turn of which something is told; the latest turn is the first of `said`."""
    if not chosen:
        return ""
    lines = [HEAD]
    for place in sorted({each.passage for each in chosen}, reverse=True):
        parts = sorted((each for each in chosen if each.passage == place), key=lambda each: each.at)
        lines.append(f"{said[place].role}: {' '.join(each.text.strip() for each in parts)}")
    return "\n".join(lines)
