"""Compiled grammars stay for as long as others have not cost as much."""

from __future__ import annotations

import pytest

from shared.engine.sampling.grammar_cache import GrammarCache
from shared.sampling.parameters import Grammar

SCHEMA = Grammar("json_schema", "{}")


def regex(number: int) -> Grammar:
    return Grammar("regex", f"a{{{number}}}")


def test_grammars_that_cost_little_push_out_none_that_cost_much() -> None:
    cache: GrammarCache[str] = GrammarCache(4)
    cache.put(SCHEMA, "schema", 0.5)
    for number in range(100):
        cache.put(regex(number), "regex", 0.002)
    assert cache.get(SCHEMA) == "schema"
    assert len(cache) == 4


@pytest.mark.parametrize(("others", "found"), [(12, "schema"), (13, None)])
def test_a_grammar_that_nobody_uses_goes_when_each_other_place_has_cost_as_much(
    others: int, found: str | None
) -> None:
    cache: GrammarCache[str] = GrammarCache(4)
    cache.put(SCHEMA, "schema", 0.5)
    for number in range(others):
        cache.put(regex(number), "regex", 0.125)
    assert cache.get(SCHEMA) == found


def test_of_those_that_cost_the_same_the_one_used_least_lately_goes() -> None:
    cache: GrammarCache[str] = GrammarCache(2)
    cache.put(regex(1), "one", 0.1)
    cache.put(regex(2), "two", 0.1)
    assert cache.get(regex(1)) == "one"
    cache.put(regex(3), "three", 0.1)
    assert [cache.get(regex(number)) for number in (1, 2, 3)] == ["one", None, "three"]


def test_one_that_is_put_again_takes_the_place_of_the_first() -> None:
    cache: GrammarCache[str] = GrammarCache(2)
    cache.put(regex(1), "first", 0.1)
    cache.put(regex(1), "second", 0.1)
    assert (len(cache), cache.get(regex(1))) == (1, "second")
