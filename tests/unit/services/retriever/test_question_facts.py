"""Which questions may have one answer, as far as their words say."""

from __future__ import annotations

import pytest

from services.retriever.question_facts import facts_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is a block?", "Please tell me: what's a block?"),
        ("Where is the Alamo?", "where is the alamo"),
        ("Where is the Alamo?", "WHERE IS THE ALAMO?"),
        ("Who was Tesla's father?", "Who was the father of Tesla?"),
        ("In 1,974 days?", "in 1974 days"),
        ("Why isn’t it there?", "Why is it not there?"),  # noqa: RUF001 - as phones write it
        ("where is the gate", "what is where the gate is"),
        ("水在哪里?", "水在哪里"),
    ],
)
def test_the_same_in_other_words(one: str, other: str) -> None:
    assert facts_of(one).agree_with(facts_of(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What happened in 1974?", "What happened in 1975?"),
        ("What are the two rules?", "What are the three rules?"),
        ("When was Tesla born?", "When was Edison born?"),
        ("When was Tesla born?", "when was edison born"),
        ("when was tesla born", "when was edison born"),
        ("Did he come?", "Did he not come?"),
        ("Did he not come?", "Did he not not come?"),
        ("What came before it?", "What came after it?"),
        ("Tesla was born where?", "Edison was born where?"),
        ("水在哪里?", "火在哪里?"),
        ("Где вода?", "Где огонь?"),
    ],
)
def test_what_looks_alike_and_is_not(one: str, other: str) -> None:
    assert not facts_of(one).agree_with(facts_of(other))
    assert not facts_of(other).agree_with(facts_of(one))
