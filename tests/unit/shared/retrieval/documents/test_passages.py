from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.retrieval.documents.passages import MAX_WORDS, MIN_WORDS, Passage, split_passages

MARKDOWN = """Before any heading.

# Gate
The gate opens. It closes again!

## Hinges ##
- oil them
  once a year
- or not

```sh
# not a heading
make gate
```

# Wall
| a | b |
|---|---|
"""


def sentences(count: int, words: int = 10) -> list[str]:
    return [f"Sentence {number} has " + "word " * (words - 4) + "here." for number in range(count)]


def test_headings_are_the_context_of_their_sections() -> None:
    assert [passage.heading for passage in split_passages(MARKDOWN, markdown=True)] == [
        "",
        "Gate",
        "Gate > Hinges",
        "Wall",
    ]


def test_lists_code_and_tables_keep_their_lines() -> None:
    passages = split_passages(MARKDOWN, markdown=True)
    assert passages[1].text == "The gate opens. It closes again!"
    assert passages[2].text == "- oil them once a year\n- or not\n# not a heading\nmake gate"
    assert passages[3].text == "| a | b |\n|---|---|"


def test_plain_text_has_no_headings() -> None:
    assert split_passages("# not a heading", markdown=False) == [Passage("", "# not a heading", 0, 15)]


def test_a_long_section_is_cut_between_sentences_and_the_last_one_is_repeated() -> None:
    spoken = sentences(40)
    passages = split_passages(" ".join(spoken), markdown=False)
    assert len(passages) == 8
    for passage in passages:
        assert MIN_WORDS <= len(passage.text.split()) <= MAX_WORDS
        assert passage.text.startswith("Sentence")
        assert passage.text.endswith("here.")
    assert passages[1].text.startswith("Sentence 5 ")
    assert all(any(sentence in passage.text for passage in passages) for sentence in spoken)


def test_a_short_rest_stays_with_the_passage_before_it() -> None:
    passages = split_passages(" ".join(sentences(7)), markdown=False)
    assert len(passages) == 1
    assert passages[0].text.count("Sentence") == 7


def test_quotes_survive_the_cut_between_sentences() -> None:
    text = 'He said "stop." Then he (the man.) Went on. And on'
    assert split_passages(text, markdown=False)[0].text == text


def test_a_sentence_without_end_is_cut_and_loses_no_word() -> None:
    words = [f"w{number}" for number in range(1000)]
    passages = split_passages(" ".join(words), markdown=False)
    assert [word for passage in passages for word in passage.text.split()] == words
    assert all(len(passage.text.split()) <= MAX_WORDS + MIN_WORDS for passage in passages)


def test_text_without_spaces_is_cut_by_its_length() -> None:
    passages = split_passages("水" * 5152, markdown=False)
    assert "".join(passage.text for passage in passages) == "水" * 5152
    assert len(passages) > 3


def test_empty_sections_make_no_passage() -> None:
    assert split_passages("# A\n\n## B\n\n   \n", markdown=True) == []


@given(st.text(alphabet=st.sampled_from("ab .!?\n#`-|\"'"), max_size=400), st.booleans())
def test_any_text_can_be_split_and_no_passage_is_empty(text: str, markdown: bool) -> None:
    for passage in split_passages(text, markdown=markdown):
        assert passage.text.strip()


@given(st.text(alphabet=st.sampled_from("ab .!?\n\t\u3002\u2028-|\"'"), max_size=600))
def test_a_passage_says_of_which_characters_it_was_made(text: str) -> None:
    passages = split_passages(text, markdown=False)
    for passage in passages:
        assert "".join(text[passage.start : passage.end].split()) == "".join(passage.text.split())
    assert [passage.start for passage in passages] == sorted(passage.start for passage in passages)


def test_sections_know_their_place_in_the_document() -> None:
    hinges = split_passages(MARKDOWN, markdown=True)[2]
    assert MARKDOWN[hinges.start : hinges.end].splitlines()[0] == "- oil them"
    assert MARKDOWN[hinges.start : hinges.end].splitlines()[-1] == "make gate"


def test_a_title_stands_above_all_headings() -> None:
    passages = split_passages("Text.\n# Part\nMore.", markdown=True, title="Book")
    assert [passage.heading for passage in passages] == ["Book", "Book > Part"]


def test_one_endless_line_is_cut_in_time() -> None:
    text = "x" * 4_000_000
    passages = split_passages(text, markdown=False)
    assert "".join(passage.text for passage in passages) == text
