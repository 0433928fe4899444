"""Some passages, as a retriever finds them, with questions that they answer and some that they do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shared.demo.invent import Inventor
from shared.demo.lessons.asked_lesson import asked_exchanges
from shared.demo.lessons.book_questions import BookPassage, fitting_questions
from shared.demo.lessons.pages import PageFact, Site, invent_site
from shared.demo.lessons.relations import ToldFact, tell
from shared.text.retrieval_prompt import NOT_IN_DOCUMENTS

MAX_QUESTIONS = 8
PASSAGE_COUNTS = (1, 2, 3, 4, 5)
PASSAGE_COUNT_WEIGHTS = (0.17, 0.15, 0.5, 0.12, 0.06)
REFUSAL_PROBABILITY = 0.16
ASKED_PROBABILITY = 0.5
BOOK_PROBABILITY = 0.15
CLAIM_PROBABILITY = 0.22
"""The share of questions about invented pages that are for yes or no."""
ALIAS_PROBABILITY = 0.2
LOOSE_PROBABILITY = 0.15
GENERAL = re.compile(r"\bdo\?$|\bfor\?$|\btask of\b|\bpurpose of\b")
"""Questions that nearly any sentence about their subject answers."""
DOCUMENTED = re.compile(
    r"\b(?:gateway|(?:de)?tokenizer|retriever|prefill|decode|speculator)\b", re.IGNORECASE
)
"""The topics of the questions that the adapter is judged by."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """`exchanges` are (question, answer), each by itself a chat about `passages`."""

    kind: str
    passages: tuple[str, ...]
    exchanges: tuple[tuple[str, str], ...]


class LessonPlan:
    """Draws lessons; a function of the inventor's seed and of the books."""

    def __init__(
        self,
        inventor: Inventor,
        books: Sequence[Sequence[BookPassage]],
        asked: Sequence[Sequence[BookPassage]] = (),
    ) -> None:
        """`books`: of each book the passages that can be asked about; `asked`: of each document those that
        people asked about."""
        self._inventor = inventor
        self._asked_documents = asked
        self._books = [book for book in books if len(book) >= max(PASSAGE_COUNTS)]

    def draw(self) -> Lesson:
        """The next lesson that has anything to ask, and is not by chance about the services here."""
        while True:
            if self._asked_documents and self._inventor.chance(ASKED_PROBABILITY):
                lesson = Lesson("asked", *asked_exchanges(self._inventor, self._asked_documents))
            elif self._books and self._inventor.chance(BOOK_PROBABILITY):
                lesson = self._book_lesson()
            else:
                lesson = self._site_lesson()
            if lesson.exchanges and not any(map(DOCUMENTED.search, lesson.passages)):
                return lesson

    def _site_lesson(self) -> Lesson:
        site = invent_site(self._inventor)
        passages = self._shown(site.passages)
        seen = [fact for fact in site.facts if any(fact.sentence in passage for passage in passages)]
        told = [fact for fact in seen if any(_tells(passage, fact) for passage in passages)]
        answers = _answers(seen)
        right = [
            self._asked(site, fact.subject, *pair)
            for fact in told
            for pair in [self._question(fact.told)]
            if all(len(answers[question]) == 1 for question, _ in fact.told.questions)
        ]
        wrong = [
            self._asked(site, fact.subject, question, NOT_IN_DOCUMENTS)
            for fact, question in self._unanswered(site, seen)
            if question not in answers
        ]
        return Lesson("site", passages, self._mixed(right, wrong))

    def _unanswered(self, site: Site, seen: Sequence[PageFact]) -> list[tuple[PageFact, str]]:
        """Facts of pages not shown, told ones with other details, and what no page says of a subject."""
        random = self._inventor.random
        known = {fact.told.sentence for fact in seen}
        asked = [
            (fact, self._question(fact.told)[0]) for fact in site.facts if fact.told.sentence not in known
        ]
        for fact in seen:
            other = tell(self._inventor, fact.relation, fact.subject)
            if other.sentence not in known:
                asked.append((fact, random.choice(other.questions)[0]))
        told = {(fact.subject, fact.relation.says) for fact in site.facts}
        for fact in seen:
            relation = random.choice(site.relations)
            if (fact.subject, relation.says) not in told:
                question = self._question(tell(self._inventor, relation, fact.subject))[0]
                if not GENERAL.search(question):
                    asked.append((fact, question))
        random.shuffle(asked)
        return asked

    def _question(self, told: ToldFact) -> tuple[str, str]:
        """One question with its answer, at times one for yes or no."""
        for_yes_or_no = told.claims and self._inventor.chance(CLAIM_PROBABILITY)
        return self._inventor.random.choice(told.claims if for_yes_or_no else told.questions)

    def _book_lesson(self) -> Lesson:
        random = self._inventor.random
        book = random.choice(self._books)
        start = random.randrange(len(book))
        near = [*book[start : start + 12], *random.sample(list(book), 3)]
        count = random.choices(PASSAGE_COUNTS, PASSAGE_COUNT_WEIGHTS)[0]
        shown = random.sample(near, min(count, 3, len(near)))
        asked = {question for passage in shown for question, _ in passage.questions}
        right = [(self._loosened(q), a) for q, a in fitting_questions(self._inventor, shown, shown)]
        elsewhere = random.choice(self._books)
        others = [p for p in random.sample(list(elsewhere), 3) if p not in shown]
        wrong = [
            (self._loosened(question), NOT_IN_DOCUMENTS)
            for question, _ in fitting_questions(self._inventor, others, others)
            if question not in asked and not question.startswith("How many")
        ]
        return Lesson("book", tuple(passage.text for passage in shown), self._mixed(right, wrong))

    def _shown(self, passages: Sequence[str]) -> tuple[str, ...]:
        random = self._inventor.random
        count = random.choices(PASSAGE_COUNTS, PASSAGE_COUNT_WEIGHTS)[0]
        return tuple(random.sample(list(passages), min(count, len(passages))))

    def _mixed(
        self, right: list[tuple[str, str]], wrong: list[tuple[str, str]]
    ) -> tuple[tuple[str, str], ...]:
        """Choose up to MAX_QUESTIONS, of which a share is to be refused, no question twice."""
        random = self._inventor.random
        random.shuffle(right)
        pairs: dict[str, str] = {}
        for _ in range(MAX_QUESTIONS):
            source = wrong if wrong and self._inventor.chance(REFUSAL_PROBABILITY) else right
            if source:
                question, answer = source.pop()
                pairs.setdefault(question, answer)
        return tuple(pairs.items())

    def _asked(self, site: Site, subject: str, question: str, answer: str) -> tuple[str, str]:
        """Ask, at times with a shorter name of the subject where only one can be meant."""
        if answer != subject and self._inventor.chance(ALIAS_PROBABILITY):
            alias = _alias(subject, site.subjects)
            question = question.replace(subject, alias)
        return self._loosened(question), answer

    def _loosened(self, question: str) -> str:
        """Write a question as people type: at times without a capital or a question mark."""
        if not self._inventor.chance(LOOSE_PROBABILITY):
            return question
        return self._inventor.random.choice(
            (question.rstrip("?"), question[0].lower() + question[1:], question.lower().rstrip("?"))
        )


def _alias(subject: str, subjects: Sequence[str]) -> str:
    """`the billing relay` -> `the relay`, where that is no other subject too."""
    parts = subject.split(" ")
    if len(parts) != 3 or parts[0] != "the":
        return subject
    if sum(other.endswith(parts[2]) for other in subjects) > 1:
        return subject
    return f"the {parts[2]}"


def _tells(passage: str, fact: PageFact) -> bool:
    """Whether the sentence stands there beside the subject: an `it` alone is about nobody."""
    return fact.sentence in passage and fact.subject.lower() in passage.lower()


def _answers(facts: Sequence[PageFact]) -> dict[str, set[str]]:
    answers: dict[str, set[str]] = {}
    for fact in facts:
        for question, answer in fact.told.questions:
            answers.setdefault(question, set()).add(answer)
    return answers
