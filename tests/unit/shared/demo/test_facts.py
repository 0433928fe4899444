"""The generator of grounded question answering: reproducible, answerable, and split by name."""

from random import Random

import pytest

from shared.demo.examples import Example, make_example
from shared.demo.facts import make_fact
from shared.demo.invent import Inventor, default_vocabulary, is_held_out_name
from shared.demo.prompt import SYSTEM_TEXT, chat_text
from shared.text.retrieval_prompt import CONTEXT_FORM, retrieval_prompt


def examples(seed: int, count: int = 200, held_out: bool = False) -> list[Example]:
    inventor = Inventor.seeded(seed, default_vocabulary(), held_out)
    return [make_example(inventor, facts=1 + turn % 6, fillers=turn % 4) for turn in range(count)]


def test_the_same_seed_gives_the_same_examples() -> None:
    assert examples(seed=3) == examples(seed=3)


def test_another_seed_gives_other_examples() -> None:
    assert examples(seed=3) != examples(seed=4)


def test_training_never_sees_a_held_out_name() -> None:
    inventor = Inventor.seeded(5, default_vocabulary())
    assert not any(is_held_out_name(inventor.name()) for _ in range(5000))


def test_evaluation_uses_held_out_names_alone() -> None:
    inventor = Inventor.seeded(5, default_vocabulary(), held_out=True)
    assert all(is_held_out_name(inventor.name()) for _ in range(500))


def test_the_name_split_does_not_depend_on_case() -> None:
    inventor = Inventor.seeded(6, default_vocabulary())
    names = [inventor.name() for _ in range(200)]
    assert [is_held_out_name(name.upper()) for name in names] == [is_held_out_name(name) for name in names]


def test_every_answer_stands_word_for_word_in_a_passage() -> None:
    assert all(any(e.answer in passage for passage in e.passages) for e in examples(seed=7))


def test_every_prompt_is_the_documented_format() -> None:
    for example in examples(seed=8):
        user = retrieval_prompt(example.passages, example.question, CONTEXT_FORM)
        assert example.prompt in (chat_text(user), chat_text(user, SYSTEM_TEXT))


def test_examples_hold_between_one_and_four_passages() -> None:
    assert {len(example.passages) for example in examples(seed=9)} == {1, 2, 3, 4}


@pytest.mark.parametrize("seed", range(4))
def test_every_question_shares_a_word_with_its_sentence(seed: int) -> None:
    inventor = Inventor(Random(seed), default_vocabulary())
    for _ in range(200):
        fact = make_fact(inventor)
        words = set(fact.sentence.lower().rstrip(".!?").replace(",", "").split())
        for question in fact.questions:
            assert words & set(question.lower().rstrip("?.").split()), (fact, question)
