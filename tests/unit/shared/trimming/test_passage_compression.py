"""Passages within a budget of tokens: what is left of them, and what is told of the rest."""

from __future__ import annotations

import pytest

from shared.messages import NO_TRIMMING, TrimmedPart, Trimming
from shared.text.retrieval_prompt import passage_line
from shared.trimming.kept_text import NOTHING, WHOLE, kept_text
from shared.trimming.passage_compression import CompressedPassages, compress_passages

TOWER = "The tower was built in 1889. It is 330 m tall. Many people visit it each year."
PARIS = "The tower was built in 1889. Paris is the capital of France."
BREAD = "Bread is baked of flour, water and salt."
ASKED = "How tall is the tower?"


def words(text: str) -> int:
    return len(text.split())


def compressed(*passages: str, **budgets: object) -> CompressedPassages:
    return compress_passages(passages, ASKED, Trimming(**budgets), words)  # type: ignore[arg-type]  # its fields


def tokens_of(left: CompressedPassages) -> int:
    return sum(words(passage_line(1, text)) for text in left.texts if text)


def test_without_a_budget_and_within_one_passages_stay_as_they_are() -> None:
    whole = CompressedPassages((TOWER, BREAD), (WHOLE, WHOLE))
    assert compress_passages((TOWER, BREAD), ASKED, NO_TRIMMING, words) == whole
    assert compressed(TOWER, BREAD, passage_tokens=tokens_of(whole)) == whole
    assert compressed(TOWER, BREAD, duplicates=True) == whole


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3, 0.05])
def test_what_is_left_is_within_the_share_and_stands_in_the_passages_word_by_word(share: float) -> None:
    whole = tokens_of(compressed(TOWER, PARIS, BREAD))
    left = compressed(TOWER, PARIS, BREAD, passage_share=share)
    assert tokens_of(left) <= share * whole + 1
    for passage, text, spans in zip((TOWER, PARIS, BREAD), left.texts, left.spans, strict=True):
        assert text == kept_text(passage, spans)


def test_of_both_budgets_the_smaller_one_counts() -> None:
    tokens, share = Trimming(passage_tokens=12), Trimming(passage_share=0.9)
    both = Trimming(passage_tokens=12, passage_share=0.9)
    passages = (TOWER, PARIS, BREAD)
    assert compress_passages(passages, ASKED, both, words) == compress_passages(
        passages, ASKED, tokens, words
    )
    assert compress_passages(passages, ASKED, both, words) != compress_passages(passages, ASKED, share, words)


def test_the_sentences_that_fit_the_question_stay_in_their_order_and_the_rest_is_told() -> None:
    left = compressed(TOWER, BREAD, passage_tokens=13)
    assert left.texts == ("The tower was built in 1889. It is 330 m tall.", "")
    assert left.spans == ((0, 46), NOTHING)
    assert left.parts == (TrimmedPart("passages", 1, 8), TrimmedPart("sentences", 1, 6))


def test_a_sentence_that_another_passage_says_is_told_as_that() -> None:
    left = compressed(TOWER, PARIS, duplicates=True)
    assert left.texts == (TOWER, "Paris is the capital of France.")
    assert left.parts == (TrimmedPart("duplicates", 1, 6),)


def test_a_budget_without_room_for_any_sentence_leaves_nothing() -> None:
    left = compressed(TOWER, BREAD, passage_tokens=1)
    assert (left.texts, left.spans) == (("", ""), (NOTHING, NOTHING))
    assert [part.what for part in left.parts] == ["passages"]


def test_sentences_are_chosen_again_where_they_cost_more_beside_each_other_than_alone() -> None:
    def dearer_together(text: str) -> int:
        return words(text) + (5 if "1889. It" in text else 0)

    left = compress_passages((TOWER,), ASKED, Trimming(passage_tokens=12), dearer_together)
    assert sum(dearer_together(f"{passage_line(1, text)}\n") for text in left.texts) <= 12
