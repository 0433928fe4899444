from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.retrieval.index.words import MAX_WORD_CHARS, terms_of


def terms(text: str) -> list[str]:
    return list(terms_of(text))


def common(first: str, second: str) -> set[str]:
    return set(terms(first)) & set(terms(second))


def test_a_word_is_a_term_and_so_is_each_run_of_four_of_its_letters() -> None:
    assert terms("Gates, a 42!") == ["gates", "_gat", "gate", "ates", "tes_", "a", "42"]
    assert terms("the") == ["the", "_the", "the_"]


@pytest.mark.parametrize(
    ("written", "also"),
    [
        ("ÉCOLE", "ecole"),
        ("Straße", "STRASSE"),
        ("ﬁle", "file"),
        ("\uff11\uff12", "12"),
        ("ёлка", "елка"),
        ("İstanbul", "istanbul"),
        ("مُدَرِّسَة", "مدرسه"),
        ("أحمد", "احمد"),
        ("ﾃｽﾄ", "テスト"),
        (unicodedata.normalize("NFD", "Öfen"), "öfen"),
    ],
)
def test_ways_to_write_a_word_are_one_term(written: str, also: str) -> None:
    assert terms(written) == terms(also)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("Wasserkraftwerk", "Kraftwerke", "kraf"),
        ("книги", "книга", "книг"),
        ("والمدرسة", "مدرسة", "مدرس"),
        ("running", "runner", "runn"),
    ],
)
def test_forms_of_a_word_have_terms_in_common(first: str, second: str, shared: str) -> None:
    assert shared in common(first, second)


def test_marks_of_a_script_are_no_ends_of_words() -> None:
    assert terms("हिन्दी भाषा")[0] == "हिन्दी"
    assert "भाषा" in terms("हिन्दी भाषा")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("水門の鍵", ["水", "門", "の", "鍵", "水門", "門の", "の鍵"]),
        ("北京API文档", ["北", "京", "北京", "api", "_api", "api_", "文", "档", "文档"]),
        ("개와", ["개", "와", "개와"]),
        ("เมื่อไร", ["เมื่", "อ", "ไร", "เมื่อ", "อไร"]),
        ("ខ្មែរ", ["ខ្មែ", "រ", "ខ្មែរ"]),
        ("ကျောင်း", ["ကျော", "င်း", "ကျောင်း"]),
    ],
)
def test_where_no_space_is_written_terms_are_small_units_and_pairs_of_them(
    text: str, expected: list[str]
) -> None:
    assert terms(text) == expected


def test_the_rest_of_an_endless_word_does_not_count() -> None:
    assert terms("x" * MAX_WORD_CHARS) == terms("x" * 1_000_000)


def test_what_is_no_word_has_no_term() -> None:
    assert terms("... — !? \u200b 🙂 \n") == []


@given(st.text())
def test_any_text_has_terms_without_spaces_that_are_its_own_terms(text: str) -> None:
    for term in terms(text):
        assert term
        assert not any(char.isspace() for char in term)
