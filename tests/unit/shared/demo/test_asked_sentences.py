"""Sentences that people asked about: which questions are taken, which texts are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.demo.invent import Inventor, default_vocabulary
from shared.demo.lessons.asked_lesson import MAX_QUESTIONS, MAX_SAME_ANSWER, asked_exchanges
from shared.demo.lessons.asked_sentences import SENTENCES_FILE, asked_documents, is_askable, written_text
from shared.demo.lessons.book_questions import BookPassage
from shared.demo.lessons.lesson import LessonPlan
from shared.text.retrieval_prompt import NOT_IN_DOCUMENTS

SENTENCES = {
    "Wiki1k:wikipedia:7:0:1": "It was finished in 1891 by Anna Kolb -LRB- smith -RRB- .",
    "Wiki1k:wikipedia:7:0:0": "The iron bridge over the Memel has three arches .",
    "Wiki1k:wikinews:9:0:0": "The harbour of Tilsit was closed on Monday because of the ice .",
}
ASKED = [
    ("Wiki1k:wikipedia:7:0:0", "How many arches does the bridge have?", "7", "7", "7 8"),
    ("Wiki1k:wikipedia:7:0:0", "What does the iron bridge have", "7 8", "7", "1:7 8"),
    ("Wiki1k:wikipedia:7:0:0", "What is the bridge made of iron?", "1", "2", "3"),
    ("Wiki1k:wikipedia:7:0:1", "Who is the smith that finished it?", "6 7", "6 7", "2"),
    ("Wiki1k:wikinews:9:0:0", "Why was the harbour of Tilsit closed?", "8 9 10 11", "10 11", "8 9 10 11"),
    ("PTB:wsj_0001:1", "Who joined the board of the company?", "0", "0", "0"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / SENTENCES_FILE).write_text("".join(f"{name}\t{text}\n" for name, text in SENTENCES.items()))
    rows = (f"{name}\t0\t1\t0\t0\t{question}\t" + "\t".join(marks) for name, question, *marks in ASKED)
    (tmp_path / "dev.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_a_document_has_its_sentences_in_order_and_the_questions_that_two_of_three_agree_on(
    folder: Path,
) -> None:
    news, bridge = asked_documents(folder)
    assert news == [
        BookPassage(
            "The harbour of Tilsit was closed on Monday because of the ice.",
            (("Why was the harbour of Tilsit closed?", "because of the ice"),),
        )
    ]
    assert bridge == [
        BookPassage(
            "The iron bridge over the Memel has three arches. It was finished in 1891 by Anna Kolb (smith).",
            (
                ("How many arches does the bridge have?", "three"),
                ("What does the iron bridge have?", "three arches"),
                ("Who is the smith that finished it?", "Anna Kolb"),
            ),
        )
    ]


def test_a_text_that_is_kept_apart_is_not_taught(folder: Path) -> None:
    apart = "Since then the iron bridge over the Memel has three arches, it is said."
    assert [document[0].text[:11] for document in asked_documents(folder, [apart])] == ["The harbour"]
    assert len(asked_documents(folder, ["the iron bridge over the Memel is old"])) == 2


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / SENTENCES_FILE).write_text("Wiki1k:wikinews:9:0:0\tA b .\n")
    with pytest.raises(FileNotFoundError, match="no table of questions"):
        asked_documents(tmp_path)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("He said : `` It 's late '' , and left .", 'He said: "It\'s late", and left.'),
        ("It costs $ 5 -LRB- or 4 % more -RRB- .", "It costs $5 (or 4% more)."),
        ("They do n't .", "They don't."),
    ],
)
def test_tokens_become_text(tokens: str, text: str) -> None:
    assert written_text(tokens.split(" ")) == text


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who was it?", "Anna"),
        ("Who is it that did this?", "Anna"),
        ("What did Anna Kolb build there?", "Anna Kolb"),
        ("What did Anna Kolb build there?", "a ship"),
    ],
)
def test_a_question_that_could_be_about_anything_or_has_its_answer_is_not_asked(
    question: str, answer: str
) -> None:
    assert not is_askable(question, answer, "Anna Kolb did build a bridge there.")
    assert is_askable("What did Anna Kolb build there?", "a bridge", "Anna Kolb did build a bridge there.")


def test_a_lesson_asks_what_one_of_its_passages_answers_and_refuses_what_none_does(folder: Path) -> None:
    documents = asked_documents(folder)
    inventor = Inventor.seeded(2, default_vocabulary())
    kinds = {"refused": 0, "Yes": 0, "No": 0, "plain": 0}
    for _ in range(400):
        passages, exchanges = asked_exchanges(inventor, documents)
        text = " ".join(passages)
        assert len(set(passages)) == len(passages)
        assert len(exchanges) <= MAX_QUESTIONS
        for question, answer in exchanges:
            if answer == NOT_IN_DOCUMENTS:
                kinds["refused"] += 1
                assert not any(question in dict(p.questions) for d in documents for p in d if p.text in text)
                continue
            word, _, reason = answer.partition(", ")
            kinds[word if word in ("Yes", "No") else "plain"] += 1
            assert (reason if word in ("Yes", "No") else answer) in text
    assert kinds["plain"] > 5 * kinds["refused"] > 0


def test_the_same_answer_is_asked_for_only_so_often_and_some_are_granted_and_denied() -> None:
    def passage(town: str, people: str) -> BookPassage:
        asked = [(f"Who was mayor of {town} in {year}?", people) for year in range(1900, 1910)]
        return BookPassage(f"{people} was mayor of {town}, from 1900 to 1909.", tuple(asked))

    documents = [[passage("Tilsit", "Anna Kolb")], [passage("Memel", "Otto Ranke")]]
    inventor = Inventor.seeded(2, default_vocabulary())
    answers = []
    for _ in range(200):
        _, exchanges = asked_exchanges(inventor, documents)
        given = [answer for _, answer in exchanges if answer != NOT_IN_DOCUMENTS]
        names = [answer.rpartition(", ")[2] for answer in given]
        assert all(names.count(name) <= MAX_SAME_ANSWER for name in names)
        answers += [pair for pair in exchanges if ", " in pair[1]]
    denied = [(question, answer) for question, answer in answers if answer.startswith("No, ")]
    granted = [(question, answer) for question, answer in answers if answer.startswith("Yes, ")]
    assert denied
    assert granted
    assert all(answer.removeprefix("Yes, ") in question for question, answer in granted)
    assert not any(answer.removeprefix("No, ") in question for question, answer in denied)


def test_a_plan_teaches_them_among_other_lessons_and_none_without(folder: Path) -> None:
    def kinds(plan: LessonPlan) -> set[str]:
        return {plan.draw().kind for _ in range(30)}

    assert kinds(LessonPlan(Inventor.seeded(1, default_vocabulary()), [], asked_documents(folder))) == {
        "asked",
        "site",
    }
    assert kinds(LessonPlan(Inventor.seeded(1, default_vocabulary()), [])) == {"site"}
