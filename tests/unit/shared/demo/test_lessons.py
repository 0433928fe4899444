"""Lessons: what is asked is answered by the passages shown, or refused because it is not."""

from __future__ import annotations

import pytest

from shared.demo.invent import Inventor, default_vocabulary, is_held_out_name
from shared.demo.lessons.book_questions import book_passages, questions_about
from shared.demo.lessons.lesson import Lesson, LessonPlan
from shared.demo.lessons.pages import invent_site
from shared.demo.lessons.relation_tables import KINDS, _relation, read_relations
from shared.demo.lessons.relations import tell
from shared.text.retrieval_prompt import NOT_IN_DOCUMENTS
from tests.bench.document_questions import read_questions

RELATIONS = [relation for kind in KINDS for relation in read_relations(kind)]
STORY = (
    "Heidi saw the goats on the green hill behind the old hut. Mr. Sesemann was a tall man with a beard. "
    "He was often away from home because his business was in Paris.\n\n"
    '"I do not know the man at all," said Peter. There were seven windows in the house and one door to it.'
)


def lessons(count: int, *, seed: int = 1, held_out: bool = False) -> list[Lesson]:
    inventor = Inventor.seeded(seed, default_vocabulary(), held_out)
    plan = LessonPlan(inventor, [book_passages(STORY) * 5])
    return [plan.draw() for _ in range(count)]


def test_lessons_are_a_function_of_the_seed() -> None:
    assert lessons(20) == lessons(20)
    assert lessons(20) != lessons(20, seed=2)


def test_every_wording_of_a_relation_holds_its_answer() -> None:
    for relation in RELATIONS:
        inventor = Inventor.seeded(3, default_vocabulary())
        for _ in range(12):
            told = tell(inventor, relation, "the night relay")
            assert "{" not in told.sentence
            for question, answer in told.questions:
                assert "{" not in question + answer
                assert not _unsaid(answer, told.sentence), (told.sentence, question, answer)


def test_a_slot_that_is_neither_drawer_nor_list_is_refused() -> None:
    fields = {"says": ["{e} has {v}."], "asks": ["What has {e}?"], "slots": {"v": "colours"}}
    assert _relation(fields, {"colours": ("red",)}).slots == {"v": ("red",)}
    with pytest.raises(ValueError, match="nothing draws 'colours'"):
        _relation(fields, {})


def test_an_answer_stands_in_the_passages_shown_and_a_refusal_is_one_sentence() -> None:
    refused = 0
    exchanges = [(lesson, answer) for lesson in lessons(300) for _, answer in lesson.exchanges]
    for lesson, answer in exchanges:
        if answer == NOT_IN_DOCUMENTS:
            refused += 1
            continue
        reason = answer.removeprefix("Yes, ").removeprefix("No, ")
        assert not _unsaid(reason, " ".join(lesson.passages)), (lesson.passages, answer)
    assert 0.08 < refused / len(exchanges) < 0.3


def test_some_questions_about_pages_are_for_yes_or_no() -> None:
    answers = [answer for lesson in lessons(300) if lesson.kind == "site" for _, answer in lesson.exchanges]
    for word in ("Yes, ", "No, "):
        assert 0.04 < sum(answer.startswith(word) for answer in answers) / len(answers) < 0.15


def test_what_is_refused_is_asked_nowhere_in_the_lesson_with_an_answer() -> None:
    for lesson in lessons(100):
        questions = [question for question, _ in lesson.exchanges]
        assert len(set(questions)) == len(questions)


def test_held_out_lessons_have_other_names() -> None:
    for held_out in (False, True):
        site = invent_site(Inventor.seeded(5, default_vocabulary(), held_out))
        names = [word for subject in site.subjects for word in subject.split() if word[0].isupper()]
        assert all(is_held_out_name(name) == held_out for name in names)


def test_no_page_is_about_a_part_that_the_documentation_has() -> None:
    parts = ("gateway", "tokenizer", "retriever", "prefill", "decode worker", "speculator")
    for lesson in lessons(200):
        assert not any(part in passage.lower() for passage in lesson.passages for part in parts)


def test_no_question_about_the_documentation_is_taught() -> None:
    asked = {question.question.lower() for question in read_questions("all") + read_questions("yes_no")}
    taught = {question.lower() for lesson in lessons(300) for question, _ in lesson.exchanges}
    assert not asked & taught


@pytest.mark.parametrize(
    ("sentence", "question", "answer"),
    [
        ("Heidi saw the goats on the hill.", "What did Heidi see?", "the goats on the hill"),
        ("Mr. Sesemann was a tall man.", "What was Mr. Sesemann?", "a tall man"),
        ('"I do not know the man," said Peter.', 'Who says "I do not know the man"?', "Peter"),
        (
            "The old man went home because he was tired.",
            "Why is it that the old man went home?",
            "because he was tired",
        ),
        ("There were seven windows here.", "How many windows are spoken of?", "seven"),
        ("Captain Nemo returned to the ship.", "Where did Captain Nemo return to?", "the ship"),
    ],
)
def test_a_sentence_of_a_book_is_asked_about_by_its_form(sentence: str, question: str, answer: str) -> None:
    assert (question, answer) in list(questions_about(sentence))


def test_sentences_that_begin_with_no_name_ask_for_nobody() -> None:
    assert not list(questions_about("Then saw the goats of the hill."))


def _unsaid(answer: str, text: str) -> list[str]:
    """Words of an answer that the text has in no form, but for those that only bind it to the question."""
    binders = {"it", "in", "for", "each", "because", "to", "when", "after", "one", "with", "every"}
    words = {word.strip(".,").lower() for word in answer.split()} - binders
    return [word for word in words if word[:3] not in text.lower()]
