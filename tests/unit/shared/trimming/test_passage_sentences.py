"""Passages as sentences, each with its place."""

from __future__ import annotations

from shared.trimming.passage_sentences import MAX_SENTENCES, MAX_SENTENCES_IN_ALL, passage_sentences


def test_each_sentence_knows_its_passage_and_its_place_there() -> None:
    passages = ["One is here. Two is there.", "***", "Three."]
    found = passage_sentences(passages)
    assert [(each.passage, each.at, each.text) for each in found] == [
        (0, 0, "One is here."),
        (0, 1, "Two is there."),
        (2, 0, "Three."),
    ]
    assert all(each.span.of(passages[each.passage]) == each.text for each in found)


def test_what_follows_the_most_sentences_is_one_with_the_last() -> None:
    sentences = [f"Sentence {'x' * number} ends here." for number in range(1, MAX_SENTENCES + 6)]
    text = " ".join(sentences)
    found = passage_sentences([text])
    assert len(found) == MAX_SENTENCES
    assert found[-1].text == " ".join(sentences[MAX_SENTENCES - 1 :])


def test_of_many_passages_each_has_so_few_sentences_that_all_are_no_more_than_the_most() -> None:
    text = " ".join(f"Sentence {'x' * number} ends here." for number in range(1, MAX_SENTENCES + 1))
    passages = [text] * (2 * MAX_SENTENCES_IN_ALL // MAX_SENTENCES)
    found = passage_sentences(passages)
    assert len(found) == MAX_SENTENCES_IN_ALL
    assert {each.passage for each in found} == set(range(len(passages)))
    assert found[-1].span.end == len(text)
