"""What is found of a text in itself."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from shared.engine.scheduling.ngram_index import (
    LONGEST_MATCH,
    MAX_PLACES,
    NO_GUESS,
    SHORTEST_MATCH,
    WINDOW_TOKENS,
    Guess,
    NgramIndex,
)

FEW_IDS = st.lists(st.integers(0, 3), max_size=120)
"""The ids are so few that no two pairs share a chain."""


def looked_up(tokens: Sequence[int], most: int = 6) -> Guess:
    lookup = NgramIndex()
    lookup.index(tokens, len(tokens))
    return lookup.look_up(tokens, most)


def naively(tokens: Sequence[int], most: int) -> Guess:
    """The rule as it is told, without an index. `end` is that of the text, a place that of a match."""
    end = len(tokens)
    places = [
        place for place in range(end - 1, 1, -1) if list(tokens[place - 2 : place]) == list(tokens[end - 2 :])
    ]
    best, best_length = 0, 0
    for place in places[: MAX_PLACES - 1]:  # the end itself is the first that is looked at
        length = SHORTEST_MATCH
        while length < min(LONGEST_MATCH, place) and tokens[place - length - 1] == tokens[end - length - 1]:
            length += 1
        if length > best_length:
            best, best_length = place, length
    if not best:
        return NO_GUESS
    guess = list(tokens)
    while len(guess) < end + most:
        guess.append(guess[len(guess) - end + best])
    return Guess(tuple(guess[end:]), best_length)


@given(FEW_IDS, st.integers(1, 12))
def test_what_is_found_is_what_a_search_of_the_whole_text_finds(tokens: list[int], most: int) -> None:
    assert looked_up(tokens, most) == (naively(tokens, most) if len(tokens) > 2 else NO_GUESS)


@given(FEW_IDS, st.lists(st.integers(0, 9), max_size=60))
def test_a_text_that_was_taken_in_bit_by_bit_is_the_same(tokens: list[int], pieces: list[int]) -> None:
    lookup = NgramIndex()
    taken = sum(lookup.index(tokens, most) for most in [*pieces, len(tokens)])
    assert taken == max(0, len(tokens) - 1)
    assert lookup.look_up(tokens, 5) == looked_up(tokens, 5)


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 3), max_size=80))
def test_ids_of_any_size_are_found_where_they_stand(tokens: list[int]) -> None:
    ids, match = looked_up(tokens + tokens[:6], 4)
    if len(tokens) >= 6:
        assert match >= SHORTEST_MATCH
        assert set(ids) <= set(tokens)


def test_the_longest_match_wins_and_of_equals_the_latest() -> None:
    assert looked_up([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], 1) == Guess((7,), 3)
    assert looked_up([2, 3, 7, 9, 2, 3, 8, 5, 2, 3], 1) == Guess((8,), 2)


def test_a_text_that_repeats_itself_is_guessed_to_go_on_so() -> None:
    assert looked_up([5, 1, 2, 3, 1, 2, 3], 7).token_ids == (1, 2, 3, 1, 2, 3, 1)


def test_one_token_alone_and_a_text_without_repetition_find_nothing() -> None:
    assert looked_up([1, 2, 3, 9, 3]) == NO_GUESS
    assert looked_up([1, 1]) == looked_up([4]) == looked_up([]) == NO_GUESS
    assert looked_up([1, 2, 1, 2], 0) == NO_GUESS


def test_what_lies_behind_the_window_is_forgotten() -> None:
    def found(distance: int) -> Guess:
        between = range(10, 10 + distance - 2)
        return looked_up([0, 1, 2, *between, 1, 2], 1)

    assert found(WINDOW_TOKENS - 2) == Guess((10,), 2)
    assert found(WINDOW_TOKENS + 1) == NO_GUESS


def test_a_text_of_any_length_takes_80_kilobytes_at_most() -> None:
    lookup = NgramIndex()
    tokens = list(range(2 * WINDOW_TOKENS + 5))
    assert lookup.index(tokens, len(tokens)) == len(tokens) - 1
    assert sum(len(each) * each.itemsize for each in (lookup._latest, lookup._before)) == 80 * 1024


def test_so_many_places_are_looked_at_and_no_more() -> None:
    def found(others: int) -> int:
        like = [7, 3, 1, 2, 5]
        return looked_up([*like, *[8, 1, 2, 6] * others, 7, 3, 1, 2], 1).match_tokens

    assert found(MAX_PLACES - 2) == 4
    assert found(MAX_PLACES - 1) == 2
