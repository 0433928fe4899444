"""In which order passages stand in a prompt, how much room they have, and what is said of those left out."""

from __future__ import annotations

import itertools

from services.gateway.request.prompt_passages import (
    joined_warnings,
    left_out_warning,
    near_places,
    prompt_room_tokens,
    standing_order,
)
from services.gateway.request.retrieval_use import BEST_FIRST, SHARED_PREFIX, RetrievalUse
from shared.messages import ScoredPassage

PASSAGES = (
    ScoredPassage("b.md § Second", "two", 0.9, start=40, end=60),
    ScoredPassage("b.md § First", "one", 0.8, start=0, end=39),
    ScoredPassage("a.md", "nine", 0.7, start=90, end=99),
    ScoredPassage("a.md", "zero", 0.7, start=90, end=99),
)


def test_the_best_come_first_where_that_is_asked_for() -> None:
    assert standing_order(PASSAGES, BEST_FIRST) == (0, 1, 2, 3)


def test_otherwise_passages_stand_by_document_and_place_in_it_however_well_they_fit() -> None:
    for found in itertools.permutations(PASSAGES):
        standing = [found[place] for place in standing_order(found, SHARED_PREFIX)]
        assert standing == [PASSAGES[2], PASSAGES[3], PASSAGES[1], PASSAGES[0]]


def test_passages_far_below_the_best_one_are_not_near_it_wherever_it_stands() -> None:
    scores = (0.4, 0.12, 0.119, 0.0, 0.4)
    found = [ScoredPassage("a.md", "zero", score) for score in scores]
    assert near_places(found, 0.3) == (0, 1, 4)
    assert near_places(found[::-1], 0.3) == (0, 3, 4)
    assert near_places(found, 0.0) == (0, 1, 2, 3, 4)
    assert near_places(found, 1.0) == (0, 4)
    assert near_places([], 0.3) == ()


def test_passages_that_all_score_nothing_or_no_number_are_near() -> None:
    for score in (0.0, float("nan")):
        assert near_places([ScoredPassage("a.md", "zero", score)] * 2, 0.3) == (0, 1)


def test_an_answer_has_the_room_that_it_asked_for_up_to_a_quarter_of_the_context() -> None:
    assert prompt_room_tokens(1000, 249, 5000) == 751
    assert prompt_room_tokens(1000, 250, 5000) == 750
    assert prompt_room_tokens(1000, 251, 5000) == 750


def test_a_prompt_has_no_more_room_than_reaches_a_worker() -> None:
    assert prompt_room_tokens(1000, 100, 899) == 899
    assert prompt_room_tokens(1000, 100, 901) == 900
    assert prompt_room_tokens(0, 100, 901) == 901


def test_the_smallest_context_leaves_room_for_a_token_of_each() -> None:
    assert prompt_room_tokens(2, 100, 5000) == 1
    assert prompt_room_tokens(1, 100, 5000) == 1


def test_what_was_left_out_is_counted_beside_the_limit_that_the_client_set() -> None:
    assert left_out_warning((1, 2), RetrievalUse(2)) == ""
    assert left_out_warning((), RetrievalUse(2)) == ""
    assert left_out_warning((0, 1, 0), RetrievalUse(3)) == "the prompt had no room for 2 of 3 passages"
    told = left_out_warning((0, 1), RetrievalUse(2, max_tokens=90))
    assert told == "the prompt had no room for 1 of 2 passages (retrieval.max_tokens is 90)"


def test_warnings_that_say_something_are_one_text_and_none_is_told_twice() -> None:
    assert joined_warnings("", "cut", "", "left out", "cut") == "cut; left out"
    assert joined_warnings("", "") == ""
