"""Which files of a folder are documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.errors import NotFound, TooLarge

SUFFIXES = (".md", ".txt")
SKIPPED_FOLDERS = frozenset({"node_modules", "venv", "tests", "__pycache__", "build", "dist"})
"""Hidden folders and *.egg-info are skipped too."""

MAX_FILES = 20_000
MAX_FILE_BYTES = 16 << 20
PATTERN_MARK = "*"


@dataclass(frozen=True, slots=True)
class Document:
    """`name` is the path relative to the corpus, with forward slashes."""

    name: str
    text: str

    @property
    def is_markdown(self) -> bool:
        return self.name.endswith(".md")


@dataclass(frozen=True, slots=True)
class Corpus:
    """`skipped`: files that should count but cannot, each with the reason."""

    documents: tuple[Document, ...]
    skipped: tuple[tuple[str, str], ...]


def read_corpus(corpus: str) -> Corpus:
    """`corpus` is a folder, searched with its subfolders, or FOLDER/PATTERN for files of one folder.

    Raises NotFound when there is no such folder or no document in it, TooLarge over MAX_FILES.
    """
    root, paths = _paths(corpus)
    documents, skipped = [], []
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            documents.append(Document(name, _text(path)))
        except (OSError, ValueError) as error:
            skipped.append((name, str(error)))
        if len(documents) > MAX_FILES:
            raise TooLarge(f"{corpus} has more than {MAX_FILES} documents; index a smaller folder")
    if not documents:
        raise NotFound(f"{corpus} has no readable .md or .txt file; name a folder that has some")
    return Corpus(tuple(documents), tuple(skipped))


def _paths(corpus: str) -> tuple[Path, list[Path]]:
    path = Path(corpus)
    if PATTERN_MARK in path.name and path.parent.is_dir():
        return path.parent, sorted(found for found in path.parent.glob(path.name) if _is_document(found))
    if not path.is_dir():
        raise NotFound(f"the folder {corpus} does not exist; name one that does")
    return path, sorted(_walk(path))


def _walk(root: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if not _is_skipped(name)]
        for file in files:
            path = Path(folder, file)
            if _is_document(path):
                yield path


def _is_skipped(folder: str) -> bool:
    return folder.startswith(".") or folder in SKIPPED_FOLDERS or folder.endswith(".egg-info")


def _is_document(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _text(path: Path) -> str:
    """Raises ValueError with the reason when the file is too long or not UTF-8."""
    size_bytes = path.stat().st_size
    if size_bytes > MAX_FILE_BYTES:
        raise ValueError(f"{size_bytes} bytes are over the limit of {MAX_FILE_BYTES}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
