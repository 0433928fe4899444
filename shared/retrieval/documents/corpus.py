"""Find which files of a folder are documents."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.errors import NotFound, TooLarge
from shared.retrieval.documents.document import START, Document, FilePlace, Unreadable
from shared.retrieval.documents.document_reader import DocumentReader
from shared.retrieval.documents.formats import READERS
from shared.retrieval.documents.jsonl import JSONL_SUFFIX

SKIPPED_FOLDERS = frozenset({"node_modules", "venv", "tests", "__pycache__", "build", "dist"})
"""Hidden folders and *.egg-info are skipped too."""

MAX_FILES = 20_000
MAX_DOCUMENTS = 1_000_000
"""Lines of JSONL files are documents."""
MAX_CORPUS_CHARS = 1 << 30
SUFFIXES = (*READERS, JSONL_SUFFIX)
READ_SUFFIXES = ", ".join(SUFFIXES)
PATTERN_MARK = "*"
HIDDEN = "hidden files and folders"
NO_SUFFIX = "files without a suffix"
OTHER_KIND = "*."


def is_other_kind(left_out: str) -> bool:
    """Return whether this entry of what is left out is a kind of files or folders that are never read, not a
    document that could not be."""
    is_kind = left_out in (HIDDEN, NO_SUFFIX) or left_out.startswith(OTHER_KIND)
    return is_kind or left_out.removesuffix("/") in SKIPPED_FOLDERS


@dataclass(frozen=True, slots=True)
class FileSummary:
    """The number of documents and characters that were read of a file. `skipped`: its parts that are no
    document, each with the reason; not `is_whole`, if that is the file itself, to be tried again."""

    documents: int
    chars: int
    skipped: tuple[tuple[str, str], ...] = ()
    is_whole: bool = True


class CorpusReader:
    """One reading of a corpus, file by file: a folder, searched with its subfolders; FOLDER/PATTERN for files
    of one folder; or one file. As a context it leaves no process behind."""

    def __init__(self, corpus: str) -> None:
        """Raises NotFound when there is no such folder, TooLarge over MAX_FILES."""
        self._corpus = corpus
        self._left_out = _LeftOut()
        self._root, paths = _paths(corpus, self._left_out)
        if len(paths) > MAX_FILES:
            raise TooLarge(f"{corpus} has more than {MAX_FILES} documents; index a smaller folder")
        self.files = tuple(paths)
        """The files that may hold documents, in their order."""
        self._documents = self._chars = 0
        self._reader = DocumentReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def name_of(self, path: Path) -> str:
        """Relative to the corpus, with forward slashes."""
        return path.relative_to(self._root).as_posix()

    def read(
        self, path: Path, take: Callable[[Document], None], look: Callable[[], None] = lambda: None
    ) -> FileSummary:
        """Gives each document of one of the files to `take`, and calls `look` again and again while one is
        read; what that raises ends the reading. Raises TooLarge over MAX_DOCUMENTS or MAX_CORPUS_CHARS of all
        that were read."""
        documents, chars, is_whole = self._documents, self._chars, True
        skipped: list[tuple[str, str]] = []
        name = self.name_of(path)
        try:
            for document in self._documents_of(path, name, lambda *reason: skipped.append(reason), look):
                self._count(1, len(document.text))
                take(document)
        except Unreadable as error:
            is_whole = error.is_lasting
            skipped.append((name, str(error)))
        self._left_out.documents += skipped
        return FileSummary(self._documents - documents, self._chars - chars, tuple(skipped), is_whole)

    def _documents_of(
        self, path: Path, name: str, skip: Callable[[str, str], None], look: Callable[[], None]
    ) -> Iterator[Document]:
        """Raises Unreadable."""
        self._check_file(path, name)
        place: FilePlace | None = START
        while place is not None:
            part = self._reader.read(path, name, look, place)
            for line, reason in part.skipped:
                skip(f"{name}, line {line}", reason)
            yield from part.documents
            place = part.rest

    def _check_file(self, path: Path, name: str) -> None:
        if not path.is_file():
            raise Unreadable("it is no file" if path.exists() else "it is a link that leads nowhere")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise Unreadable("its name is not UTF-8") from error
        is_named = Path(self._corpus) == path  # by who runs this
        if not is_named and path.is_symlink() and not path.resolve().is_relative_to(self._root.resolve()):
            raise Unreadable("it is a link that leaves the folder")

    def pass_over(self, summary: FileSummary) -> None:
        """A file that need not be read, because it is as it was when this was read of it. Raises TooLarge
        like `read`."""
        self._count(summary.documents, summary.chars)
        self._left_out.documents += summary.skipped

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return what is not in the corpus, each with the reason. Raises NotFound when no document is."""
        if not self._documents:
            raise NotFound(
                f"{self._corpus} has no readable document ({READ_SUFFIXES}); name a folder that has some"
            )
        return tuple(self._left_out.reasons(self._root))

    def _count(self, documents: int, chars: int) -> None:
        self._documents += documents
        self._chars += chars
        if self._documents > MAX_DOCUMENTS or self._chars > MAX_CORPUS_CHARS:
            raise TooLarge(
                f"{self._corpus} has more than {MAX_DOCUMENTS} documents or {MAX_CORPUS_CHARS} characters; "
                "index a smaller folder"
            )


def is_there(corpus: str) -> bool:
    """Return whether there is such a folder or file, or the folder of such a pattern."""
    path = Path(corpus)
    return path.exists() or (PATTERN_MARK in path.name and path.parent.is_dir())


def document_files(corpus: str) -> list[Path]:
    """The files that count, whether they can be read or not. Raises NotFound where there is no such
    folder."""
    return _paths(corpus, _LeftOut())[1]


class _LeftOut:
    """A file that is no part of the corpus."""

    def __init__(self) -> None:
        self.documents: list[tuple[str, str]] = []
        self._unreadable: list[OSError] = []
        self._links: list[Path] = []
        self._folders: Counter[str] = Counter()
        self._suffixes: Counter[str] = Counter()
        self._hidden = 0

    def unreadable(self, error: OSError) -> None:
        self._unreadable.append(error)

    def subfolder(self, path: Path) -> bool:
        """Return whether it is passed by."""
        if path.name in SKIPPED_FOLDERS:
            self._folders[path.name] += path.name != "__pycache__"
            return True
        if path.name.startswith(".") or path.name.endswith(".egg-info"):
            self._hidden += 1
            return True
        if path.is_symlink():
            self._links.append(path)
            return True
        return False

    def file(self, path: Path) -> None:
        if path.name.startswith("."):
            self._hidden += 1
        else:
            self._suffixes[path.suffix.lower()] += 1

    def reasons(self, root: Path) -> Iterator[tuple[str, str]]:
        yield from self.documents
        for error in self._unreadable:
            yield Path(error.filename).relative_to(root).as_posix() + "/", error.strerror or str(error)
        for path in self._links:
            yield path.relative_to(root).as_posix() + "/", "links to folders are not followed"
        for name, count in sorted((+self._folders).items()):
            yield f"{name}/", f"folders of this name are left out ({count} here)"
        if self._hidden:
            yield HIDDEN, f"they are left out ({self._hidden} here)"
        for suffix, count in sorted(self._suffixes.items()):
            what = OTHER_KIND + suffix[1:] if suffix else NO_SUFFIX
            yield what, f"only {READ_SUFFIXES} are read ({count} of these here)"


def _paths(corpus: str, left_out: _LeftOut) -> tuple[Path, list[Path]]:
    path = Path(corpus)
    if PATTERN_MARK in path.name and path.parent.is_dir():
        return path.parent, sorted(found for found in path.parent.glob(path.name) if _is_document(found))
    if path.is_file():
        if not _is_document(path):
            raise NotFound(f"{corpus} is no document; name one of {READ_SUFFIXES}, or a folder")
        return path.parent, [path]
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
