"""Text of any form is read in time that grows as its length does, and makes bounded passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.retrieval.documents.document_reader import DocumentReader
from shared.retrieval.documents.passages import MAX_HEADING_CHARS, split_passages
from tests.support.data import REPOSITORY

QUARTER_OF_A_MEGABYTE = 1 << 18
HOSTILE: dict[str, Callable[[int], str]] = {
    "a list of spaces": lambda n: "---\ntags: [" + " " * n + "\n---\n",
    "a list of spaces that ends": lambda n: "---\ntags: [" + " " * n + "x]\n---\n",
    "a list of commas": lambda n: "---\ntags: [" + "a," * n + "]\n---\n",
    "a list of quotes": lambda n: "---\ntags: [" + "'" * n + "]\n---\n",
    "escaped quotes": lambda n: '---\n"' + '\\"' * n + "\n---\n",
    "comments": lambda n: "---\na: " + " #" * n + "\n---\n",
    "a field of spaces": lambda n: "---\na" + " " * n + "b\n---\n",
    "a field of colons": lambda n: "---\na" + ":x" * n + "\n---\n",
    "an item of spaces": lambda n: "---\na:\n" + " " * n + "-x\n---\n",
    "a heading of spaces": lambda n: "# a" + " " * n + "x",
    "a heading of #": lambda n: "# a" + " #" * n + "x",
    "headings": lambda n: "# a\nIt is.\n" * n,
    "spaces in a line": lambda n: "x" + " " * n + "y",
    "spaces in code": lambda n: "```\nx" + " " * n + "y\n",
    "spaces in a sentence": lambda n: "." + " " * n + "x",
    "full stops": lambda n: ". " * n,
    "quotes": lambda n: '."' + ' "' * n,
    "digits": lambda n: "1" * n,
    "items": lambda n: "- a\n" * n,
    "fences": lambda n: "```\n" * n,
    "line separators": lambda n: "a\u2028" * n,
    "one word": lambda n: "a" * n,
}


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        reader = DocumentReader()
        yield reader
        reader.close()


@pytest.mark.parametrize("form", HOSTILE)
def test_a_quarter_of_a_megabyte_is_read_within_the_limits_of_a_document(
    reader: DocumentReader, tmp_path: Path, form: str
) -> None:
    """A reader whose time grows with the square of the length would take minutes, and is killed before."""
    repeated = HOSTILE[form](1000)
    text = HOSTILE[form](QUARTER_OF_A_MEGABYTE * 1000 // len(repeated))
    path = tmp_path / "a.md"
    path.write_text(text)
    (document,) = reader.read(path, "a.md", lambda: None).documents
    assert len(document.text) == len(text)


@pytest.mark.parametrize("form", HOSTILE)
def test_passages_are_not_much_longer_than_their_text(form: str) -> None:
    text = HOSTILE[form](2000)
    passages = split_passages(text, markdown=True)
    assert sum(len(passage.embedded_text) for passage in passages) <= 2 * len(text)


def test_a_heading_counts_up_to_its_limit() -> None:
    (passage,) = split_passages(f"# {'a' * (MAX_HEADING_CHARS + 1)}\nb", markdown=True)
    assert passage.heading == "a" * MAX_HEADING_CHARS
