"""Citations of the prompt's passages as OpenAI's file citations: each `[n]` of a text, and at its end each
sentence that a passage supports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb

CITATION = re.compile(r"\[([1-9][0-9]?)\]")
BEGUN_CITATION = re.compile(r"\[(?:[1-9][0-9]?)?\Z")
"""Text that may become a citation with the text that follows."""

FileCitation = Mapping[str, Any]
"""`index` is where in the text its `[n]` begins, in characters, or the sentence that `start_index` and
`end_index` are around."""


class Citations:
    """The citations of one text, in the order in which they come.

    `documents`: names, by the places of their passages in the prompt; a number that is no such place cites
    nothing.
    """

    def __init__(self, documents: Mapping[int, str]) -> None:
        self.found: list[FileCitation] = []
        self._documents = documents
        self._read_chars = 0
        self._begun = ""

    def read(self, text: str) -> list[FileCitation]:
        """Return the citations that `text`, the next part, completes."""
        start, text = self._read_chars - len(self._begun), self._begun + text
        new = [
            _file_citation(start + match.start(), self._documents[place])
            for match in CITATION.finditer(text)
            if (place := int(match[1])) in self._documents
        ]
        begun = BEGUN_CITATION.search(text)
        self._begun = begun[0] if begun else ""
        self._read_chars = start + len(text)
        self.found += new
        return new

    def support(self, sentences: Iterable[pb.Citation]) -> list[FileCitation]:
        """Return a citation for each sentence that a passage supports, unless it has that number itself."""
        written = {(found["index"], found["filename"]) for found in self.found}
        new: list[FileCitation] = []
        for each in sentences:
            document = self._documents.get(each.prompt_place)
            if document is None or any(
                each.start <= at < each.end and name == document for at, name in written
            ):
                continue
            new.append(
                {**_file_citation(each.start, document), "start_index": each.start, "end_index": each.end}
            )
        self.found += new
        return new


def _file_citation(index: int, document: str) -> FileCitation:
    return {"type": "file_citation", "index": index, "file_id": document, "filename": document}
