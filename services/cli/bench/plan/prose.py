"""Text that reads as text: runs of whole sentences of files, drawn anew for each prompt."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Self

from shared.errors import InvalidRequest

MAX_TEXT_BYTES = 64 << 20
"""The most that is read of files that prompts are made of; what is beyond is left out."""
RUN_CHARS = 1200
"""The characters after which a text goes on with another place of the files."""
TITLE_WORDS = 4
"""The words, drawn one by one, that a text begins with: a short file has few sentences to begin at, and texts
that begin alike share what a server keeps of their beginning."""
LONG_WORD_CHARS = 40
"""A text is looked at so far beyond a cut, to keep its first word whole."""
LEAST_SENTENCES = 20
SUFFIXES = (".md", ".txt")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'“])")
PARAGRAPHS = "\n\n"


class Prose:
    """`text` has whole sentences."""

    def __init__(self, text: str, name: str) -> None:
        """Raises InvalidRequest for a text of too few sentences."""
        self._text = re.sub(r"[ \t]+", " ", text).strip()
        self._words = self._text.split()
        self._starts = [0, *(match.end() for match in SENTENCE.finditer(self._text))]
        if len(self._starts) < LEAST_SENTENCES:
            raise InvalidRequest(
                f"{name} has {len(self._starts)} sentences, and prompts are made of {LEAST_SENTENCES} at "
                "least: pass a longer text with --text"
            )

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file, or all .md and .txt files of a folder by name. Raises InvalidRequest."""
        try:
            files = sorted(_texts_of(path)) if path.is_dir() else [path]
            return cls("".join(_read_up_to(files, MAX_TEXT_BYTES)), str(path))
        except OSError as error:
            raise InvalidRequest(f"the text {path} cannot be read ({error.strerror})") from error

    def __len__(self) -> int:
        return len(self._text)

    def write(self, random: Random, chars: int) -> str:
        """Return at most so many characters, ended behind a word; one word at least.

        A shorter text from the same state of `random` begins a longer one; no other text begins as it does.
        """
        runs = [" ".join(random.choices(self._words, k=TITLE_WORDS))]
        left = chars - len(runs[0]) - len(PARAGRAPHS)
        while left > 0:
            begin = random.choice(self._starts)
            run = self._text[begin : min(begin + max(left, LONG_WORD_CHARS) + 1, self._run_end(begin))]
            runs.append(run)
            left -= len(run) + len(PARAGRAPHS)
        return _whole_words(PARAGRAPHS.join(runs), chars)

    def _run_end(self, begin: int) -> int:
        """Return where the sentence ends that is the last of a run from `begin`."""
        behind = bisect_left(self._starts, begin + RUN_CHARS)
        return self._starts[behind] if behind < len(self._starts) else len(self._text)


def _texts_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _read_up_to(files: list[Path], limit: int) -> Iterator[str]:
    for file in files:
        if limit <= 0:
            return
        with file.open("rb") as opened:
            data = opened.read(limit)
        limit -= len(data)
        yield data.decode("utf-8", errors="ignore") + PARAGRAPHS


def _whole_words(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text.rstrip()
    cut = text[: max(1, chars)]
    if not text[len(cut)].isspace():
        behind_space = max(cut.rfind(" "), cut.rfind("\n"))
        cut = cut[:behind_space] if behind_space > 0 else text.split(maxsplit=1)[0]
    return cut.rstrip()
