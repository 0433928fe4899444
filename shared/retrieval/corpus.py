"""Which files of a folder are documents."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.errors import NotFound, TooLarge

SUFFIXES = (".md", ".txt")
SKIPPED_FOLDERS = frozenset({"node_modules", "venv", "tests", "__pycache__", "build", "dist"})
"""Hidden folders and *.egg-info are skipped too."""
UNREAD_SUFFIXES = frozenset(
    {".doc", ".docx", ".odt", ".ppt", ".pptx", ".rtf"}
    | {".adoc", ".markdown", ".mdx", ".org", ".rst", ".tex"}
    | {".epub", ".htm", ".html", ".pdf"}
)
"""Of documents that are not read, which is said; of what is no document nothing is."""

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
        return self.name.lower().endswith(".md")


@dataclass(frozen=True, slots=True)
class Corpus:
    """`skipped`: what might be expected to count and does not, each with the reason."""

    documents: tuple[Document, ...]
    skipped: tuple[tuple[str, str], ...]


def read_corpus(corpus: str) -> Corpus:
    """`corpus` is a folder, searched with its subfolders, or FOLDER/PATTERN for files of one folder.

    Raises NotFound when there is no such folder or no document in it, TooLarge over MAX_FILES.
    """
    left_out = _LeftOut()
    root, paths = _paths(corpus, left_out)
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
    return Corpus(tuple(documents), (*skipped, *left_out.reasons(root)))


class _LeftOut:
    """What a walk through a folder passes by."""

    def __init__(self) -> None:
        self._unreadable: list[OSError] = []
        self._links: list[Path] = []
        self._folders: Counter[str] = Counter()
        self._suffixes: Counter[str] = Counter()

    def unreadable(self, error: OSError) -> None:
        self._unreadable.append(error)

    def subfolder(self, path: Path) -> bool:
        """Whether it is passed by."""
        if path.name in SKIPPED_FOLDERS:
            self._folders[path.name] += path.name != "__pycache__"
            return True
        if path.name.startswith(".") or path.name.endswith(".egg-info"):
            return True
        if path.is_symlink():
            self._links.append(path)
            return True
        return False

    def file(self, path: Path) -> None:
        suffix = path.suffix.lower()
        if suffix in UNREAD_SUFFIXES and not path.name.startswith("."):
            self._suffixes[suffix] += 1

    def reasons(self, root: Path) -> Iterator[tuple[str, str]]:
        for error in self._unreadable:
            yield Path(error.filename).relative_to(root).as_posix() + "/", error.strerror or str(error)
        for path in self._links:
            yield path.relative_to(root).as_posix() + "/", "links to folders are not followed"
        for name, count in sorted((+self._folders).items()):
            yield f"{name}/", f"folders of this name are left out ({count} here)"
        for suffix, count in sorted(self._suffixes.items()):
            yield f"*{suffix}", f"only .md and .txt are read ({count} of these here)"


def _paths(corpus: str, left_out: _LeftOut) -> tuple[Path, list[Path]]:
    path = Path(corpus)
    if PATTERN_MARK in path.name and path.parent.is_dir():
        return path.parent, sorted(found for found in path.parent.glob(path.name) if _is_document(found))
    if not path.is_dir():
        raise NotFound(f"the folder {corpus} does not exist; name one that does")
    return path, sorted(_walk(path, left_out))


def _walk(root: Path, left_out: _LeftOut) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root, onerror=left_out.unreadable):
        subfolders[:] = [name for name in subfolders if not left_out.subfolder(Path(folder, name))]
        for file in files:
            path = Path(folder, file)
            if _is_document(path):
                yield path
            else:
                left_out.file(path)


def _is_document(path: Path) -> bool:
    """Or what would be one: a link that leads nowhere is found out when it is read."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _text(path: Path) -> str:
    """Without a byte order mark. Raises ValueError with the reason when it is too long or not UTF-8."""
    if not path.is_file():
        raise ValueError("it is no file" if path.exists() else "it is a link that leads nowhere")
    size_bytes = path.stat().st_size
    if size_bytes > MAX_FILE_BYTES:
        raise ValueError(f"{size_bytes} bytes are over the limit of {MAX_FILE_BYTES}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
