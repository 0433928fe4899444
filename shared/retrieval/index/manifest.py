"""Record which generation of an index counts, and what made one: the two small files that all others hang on.

The pointer names the generation and the digest of its manifest, the manifest size and digest of each file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from shared.errors import ChecksumMismatch
from shared.files.atomic_write import SECRET_MODE, write_file
from shared.retrieval.index.lexical import LEXICAL_NAMES
from shared.retrieval.index.nearest import FLAT, KINDS, NEAREST_NAMES
from shared.retrieval.index.passage_table import TABLE_NAMES

FORMAT = 3
POINTER_NAME = "current"
MANIFEST_NAME = "manifest.json"
VECTORS_NAME = "vectors.npy"
KEYS_NAME = "keys.npy"
FILE_NAMES = (*TABLE_NAMES, VECTORS_NAME, KEYS_NAME, *LEXICAL_NAMES)
MAX_MANIFEST_BYTES = 1 << 16
"""The longest pointer or manifest; of a longer one the index is damaged."""
MAX_NUMBER = 1 << 62
"""Generations and passages are below it."""
MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The errors of reading JSON that is not what it should be: `int` of infinity is an arithmetic one."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The inputs of a generation: the model of its vectors, the rules of its terms, and `content`, a digest
    of all documents and the rules by which they were cut. `files`: size and SHA-256 of each."""

    embedder: str
    words: str
    content: str
    passages: int
    nearest: str
    files: dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class CurrentPointer:
    """The generation that counts, and the SHA-256 of its manifest."""

    generation: int
    manifest: str


def file_names(nearest: str) -> tuple[str, ...]:
    """Name the files of a generation, beside its manifest, by the kind of its nearest vectors."""
    return FILE_NAMES if nearest == FLAT else (*FILE_NAMES, *NEAREST_NAMES)


def pointer_file(folder: Path) -> Path:
    """Return the file that is replaced when another generation counts."""
    return folder / POINTER_NAME


def read_pointer(folder: Path) -> CurrentPointer | None:
    """Read which generation counts; None without a pointer of this format. Raises ChecksumMismatch when it is
    damaged."""
    written = _read_pointer(folder)
    return None if written is None or written[0] != FORMAT else written[1]


def other_format(folder: Path) -> object:
    """The format of an index that another version of this program has made; None where there is none."""
    written = _read_pointer(folder)
    return None if written is None or written[0] == FORMAT else written[0]


def write_pointer(folder: Path, pointer: CurrentPointer) -> None:
    """Make that generation count, in one step. Raises OSError."""
    write_file(
        pointer_file(folder), json.dumps({"format": FORMAT, **asdict(pointer)}).encode(), mode=SECRET_MODE
    )


def read_manifest(generation: Path, digest: str) -> Manifest:
    """Raises ChecksumMismatch when it is not the one with this digest, or does not name the files of an
    index."""
    try:
        data = _read_small(generation / MANIFEST_NAME)
        if hashlib.sha256(data).hexdigest() != digest:
            raise ChecksumMismatch(f"{generation / MANIFEST_NAME} has changed since it was written")
        values = json.loads(data)
        files = {name: (int(size), str(sha256)) for name, (size, sha256) in values["files"].items()}
        told = {name: values[name] for name in ("embedder", "words", "content", "nearest")}
        if not all(isinstance(value, str) for value in told.values()) or not _is_count(values["passages"]):
            raise TypeError("a value of another type")
        manifest = Manifest(**told, passages=values["passages"], files=files)
    except MALFORMED as error:
        raise ChecksumMismatch(f"{generation / MANIFEST_NAME} cannot be read ({error})") from error
    if manifest.nearest not in KINDS or set(manifest.files) != set(file_names(manifest.nearest)):
        raise ChecksumMismatch(f"{generation} does not hold the files of an index")
    return manifest


def write_manifest(generation: Path, manifest: Manifest) -> str:
    """Its digest. Raises OSError."""
    data = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode()
    (generation / MANIFEST_NAME).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def _read_pointer(folder: Path) -> tuple[object, CurrentPointer | None] | None:
    """(format, what it says where that is this format); None where there is no index."""
    path = pointer_file(folder)
    try:
        values = json.loads(_read_small(path))
        if values["format"] != FORMAT:
            return values["format"], None
        if not _is_count(values["generation"]):
            raise TypeError("a generation that is no number")
        return FORMAT, CurrentPointer(values["generation"], str(values["manifest"]))
    except FileNotFoundError:
        return None
    except MALFORMED as error:
        raise ChecksumMismatch(f"{path} cannot be read ({error})") from error


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_NUMBER


def _read_small(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"it is longer than {MAX_MANIFEST_BYTES} bytes")
    return data
