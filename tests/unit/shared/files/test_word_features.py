"""The words of a question as a vector: the same everywhere, of length 1, bounded."""

from __future__ import annotations

import math
from zlib import crc32

from shared.files.word_features import MAX_READ_CHARS, WORD_PLACES, word_features


def test_words_pairs_the_first_word_and_the_length_have_places_that_depend_on_nothing_else() -> None:
    named = (b"why", b"?", b"why ?", b"^ why", b"# 2")
    assert set(word_features("Why?")) == {crc32(name) % WORD_PLACES for name in named}


def test_a_vector_has_length_one_and_a_word_that_comes_again_counts_less_each_time() -> None:
    found = word_features("why why why not")
    assert math.isclose(sum(value * value for value in found.values()), 1.0)
    more = found[crc32(b"why") % WORD_PLACES] / found[crc32(b"not") % WORD_PLACES]
    assert math.isclose(more, 1 + math.log(3))


def test_case_is_nothing_and_order_is_something() -> None:
    assert word_features("Why NOT") == word_features("why not")
    assert word_features("not why") != word_features("why not")


def test_no_more_is_read_than_the_limit_and_nothing_is_no_vector() -> None:
    assert word_features("a " * MAX_READ_CHARS) == word_features("a " * (MAX_READ_CHARS // 2))
    assert word_features(" \n") == {}
    assert word_features("\ud800")
