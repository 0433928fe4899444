"""What is read of a file's front matter, and what is none."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shared.retrieval.documents.front_matter import MAX_LINES, read_front_matter
from shared.retrieval.documents.metadata import MAX_METADATA, MAX_METADATA_CHARS


@pytest.mark.parametrize(
    ("lines", "metadata"),
    [
        ("lang: en", [("lang", "en")]),
        ("lang:   en  # of the text", [("lang", "en")]),
        ("page: a#b", [("page", "a#b")]),
        ("at: 10:30", [("at", "10:30")]),
        ('title: "The \\"gate\\": a # b"', [("title", 'The "gate": a # b')]),
        ("title: 'It''s: a'  # c", [("title", "It's: a")]),
        ("draft: true\nyear: 2024", [("draft", "true"), ("year", "2024")]),
        ("tags: [b, 'c, d', \"e\"]", [("tags", "b"), ("tags", "c, d"), ("tags", "e")]),
        ("tags: []", []),
        ("tags:\n- a\n  - b\n# c\n\n- 'd: e'", [("tags", "a"), ("tags", "b"), ("tags", "d: e")]),
        ("author:\n  name: X\nlang: en", [("lang", "en")]),
        ("text: |\n  one\n  two\nlang: en", [("lang", "en")]),
        ("a: {b: c}\nd: &e f\ng: ~\nh: null\ni:\nlang: en", [("lang", "en")]),
        ("tags: [a, [b]]", [("tags", "a")]),
        ("a: b\na: c", [("a", "c")]),
        ("long name: x", [("long name", "x")]),
        ("a:  b   c", [("a", "b c")]),
    ],
)
def test_fields_with_plain_values_and_lists_are_read(lines: str, metadata: list[tuple[str, str]]) -> None:
    text = f"---\n{lines}\n---\nText"
    found = read_front_matter(text)
    assert list(found.metadata) == metadata
    assert text[found.end :] == "Text"


@pytest.mark.parametrize("end", ["---", "...", "---  "])
def test_it_ends_with_three_marks(end: str) -> None:
    text = f"--- \na: b\n{end}\nText"
    assert text[read_front_matter(text).end :] == "Text"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Text",
        "\n---\na: b\n---\n",
        "---\na: b\nText",
        "---\nA sentence, and a line below it.\n---\n",
        "---\n# Heading\n---\n",
        "---\n- a\n---\n",
        "---\n---\n",
        "----\na: b\n----\n",
        "---\n" + "a: b\n" * MAX_LINES + "---\n",
    ],
)
def test_what_is_not_all_of_fields_is_text(text: str) -> None:
    found = read_front_matter(text)
    assert (found.metadata, found.end) == ((), 0)


def test_as_many_lines_and_values_count_as_the_limits_say() -> None:
    fields = [f"f{number:03}: x" for number in range(MAX_LINES - 1)]
    found = read_front_matter("---\n" + "\n".join(fields) + "\n---\n")
    assert [field for field, _ in found.metadata] == [f"f{number:03}" for number in range(MAX_METADATA)]
    long = "x" * MAX_METADATA_CHARS
    assert read_front_matter(f"---\n{long}: {long}\nb: {long}x\n---\n").metadata == ((long, long),)


PLAIN = st.text(alphabet="abcdefg é漢", min_size=1, max_size=12).map(str.strip).filter(bool)
NAMES = st.text(alphabet="klmnop_-", min_size=2, max_size=8).filter(lambda name: name[0] not in "-_")


@given(st.dictionaries(NAMES, st.one_of(PLAIN, st.lists(PLAIN, max_size=4)), min_size=1, max_size=8))
def test_what_a_writer_of_yaml_writes_is_read_as_it_was_meant(fields: dict[str, str | list[str]]) -> None:
    written = yaml.safe_dump(fields, allow_unicode=True, width=10_000, sort_keys=False)
    found = read_front_matter(f"---\n{written}---\n")
    meant = {
        (name, " ".join(value.split()))
        for name, of in fields.items()
        for value in ([of] if isinstance(of, str) else of)
    }
    assert set(found.metadata) == meant


@given(st.text(alphabet="-.:#[]{}'\"|>&*! \nab,", max_size=60))
def test_anything_is_front_matter_or_text(text: str) -> None:
    found = read_front_matter(f"---\n{text}\n---\n")
    assert all(field and value for field, value in found.metadata)
