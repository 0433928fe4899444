"""Lessons about what people asked about: passages of a document and of others, with many questions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from shared.demo.invent import Inventor
from shared.demo.lessons.asked_sentences import words_about
from shared.demo.lessons.book_questions import BookPassage
from shared.demo.lessons.yes_no import asked_of_answer, denied, granted
from shared.demo.words import word_list
from shared.text.retrieval_prompt import NOT_IN_DOCUMENTS

MAX_QUESTIONS = 14
"""There are more than elsewhere: a passage that is read once serves all of them."""
PASSAGE_COUNT_WEIGHTS = (0.5, 0.25, 0.25)
REFUSAL_PROBABILITY = 0.07
CLAIM_PROBABILITY = 0.35
"""It is a share of the few questions whose form allows one for yes or no."""
MAX_SAME_ANSWER = 2
LEAST_FOREIGN = 0.5
"""A question is refused where the passages lack at least this share of its words."""

_WHOM = re.compile(r"^(?:Who|How many|What year|When|What (?:day|month|country|city|state|company))\b")
_PRONOUNS = frozenset(word_list("he she it they we i you him her them his its their who that this which"))

Exchange = tuple[str, str]


def asked_exchanges(
    inventor: Inventor, documents: Sequence[Sequence[BookPassage]]
) -> tuple[tuple[str, ...], tuple[Exchange, ...]]:
    """Passages in any order with questions and answers about them."""
    random = inventor.random
    document = random.choice(documents)
    first = random.randrange(len(document))
    count = random.choices((1, 2, 3), PASSAGE_COUNT_WEIGHTS)[0]
    others = [random.choice(random.choice(documents)) for _ in range(count)]
    near = document[first : first + random.randint(1, count)]
    shown = list({passage.text: passage for passage in (*near, *others)}.values())[:count]
    random.shuffle(shown)
    right = list(_varied(random.sample(pairs := _known(shown), len(pairs))))[:MAX_QUESTIONS]
    foreign = [pair for _ in range(4) for pair in random.choice(random.choice(documents)).questions]
    text = " ".join(passage.text for passage in shown)
    wrong = [question for question, _ in foreign if 1 - _share(question, text) >= LEAST_FOREIGN]
    exchanges: dict[str, str] = {}
    for pair in right:
        if wrong and inventor.chance(REFUSAL_PROBABILITY):
            exchanges[random.choice(wrong)] = NOT_IN_DOCUMENTS
        else:
            asked, answer = _whether(inventor, pair, foreign) if inventor.chance(CLAIM_PROBABILITY) else pair
            exchanges[asked] = answer
    return tuple(passage.text for passage in shown), tuple(exchanges.items())


def _known(shown: Sequence[BookPassage]) -> list[Exchange]:
    """The questions that are about one of the passages more than about any other."""
    return [
        (question, answer)
        for passage in shown
        for question, answer in passage.questions
        if answer.lower() not in _PRONOUNS
        and all(
            _share(question, passage.text) > _share(question, other.text)
            for other in shown
            if other is not passage
        )
    ]


def _varied(pairs: Iterable[Exchange]) -> Iterator[Exchange]:
    """Drop questions whose answer was given often before."""
    given: dict[str, int] = {}
    for question, answer in pairs:
        given[answer] = given.get(answer, 0) + 1
        if given[answer] <= MAX_SAME_ANSWER:
            yield question, answer


def _whether(inventor: Inventor, pair: Exchange, foreign: Sequence[Exchange]) -> Exchange:
    """Ask whether the answer is so, or whether an answer to such a question about something else is; the pair
    itself where its form does not allow it."""
    question, answer = pair
    kind = _WHOM.match(question)
    if kind is None or (granted_question := asked_of_answer(question, answer)) is None:
        return pair
    others = [
        other
        for asked, other in foreign
        if asked.startswith(kind[0]) and not set(words_about(other)) & set(words_about(answer))
    ]
    if others and inventor.chance(0.6):
        denied_question = asked_of_answer(question, inventor.random.choice(others))
        if denied_question is not None:
            return denied_question, denied(answer)
    return granted_question, granted(answer)


def _share(question: str, text: str) -> float:
    """Return which share of the words that the question is about begin like a word of the text."""
    stems = {word[:4] for word in words_about(question)}
    return sum(stem in text.lower() for stem in stems) / max(1, len(stems))
