"""Keep models that a person has pulled: whole folders under names, in the user's cache directory.

    entries/<name>.json       what a name stands for; it is written last, in one step
    files/<name>/<digest>/    the files of a model
    incoming/<name>/          what a pull has so far: the next one goes on with it
    locks/<name>              held while a model is pulled or removed

A name is seen when all of its files are there and have been checked, and never before.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

from shared.errors import InvalidRequest, NotFound, Unavailable
from shared.files.atomic_write import sync, write_file
from shared.files.folder_lock import locked_folder
from shared.files.private_folder import make_private_folder

MAX_NAME_CHARS = 128
"""The longest name of a model that is kept."""
MAX_ENTRY_BYTES = 1 << 20
"""The longest entry of a model."""
DIGEST_CHARS = 16
"""The digits of a digest that name a folder."""
ENTRIES, FILES, INCOMING, LOCKS = "entries", "files", "incoming", "locks"
SUFFIX = ".json"

_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(rf"{_PART}(/{_PART})?(@{_PART})?")


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a model. `sha256`: 64 hex digits."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model under its name. `source`: where it came from; `revision`: of a hub, its commit; `digest`: of
    all its files; `model_format` and `quantization` as `penstock list` shows them."""

    name: str
    source: str
    revision: str
    digest: str
    model_format: str
    quantization: str
    pulled_unix_us: int
    files: tuple[KeptFile, ...]

    @property
    def folder(self) -> Path:
        return _files_of(self.name) / self.digest[:DIGEST_CHARS]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def store_folder() -> Path:
    """Return where models are kept: with the other caches of the user."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "penstock" / "models"


def check_kept_name(name: str) -> None:
    """Raise InvalidRequest for what cannot be the name of a model."""
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        shown = repr(name[:MAX_NAME_CHARS])
        raise InvalidRequest(
            f"{shown} is no name of a model; write NAME or ORG/NAME, with @REVISION behind it where one is "
            f"meant, of letters, digits and . _ -, {MAX_NAME_CHARS} characters at most"
        )


def find_kept(name: str) -> KeptModel | None:
    """Return the model that is kept under that name. Raises InvalidRequest for an entry that is damaged."""
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        return None
    return _read_entry(_entry_of(name))


def kept_path(name: str) -> Path | None:
    """Return the folder of the model that is kept under that name. Raises as `find_kept` does."""
    model = find_kept(name)
    return None if model is None else model.folder


def kept_names() -> tuple[str, ...]:
    """Return the names of the models that are kept, in order."""
    entries = (store_folder() / ENTRIES).glob(f"*{SUFFIX}")
    return tuple(sorted(unquote(entry.name.removesuffix(SUFFIX)) for entry in entries))


def digest_of(files: Sequence[KeptFile]) -> str:
    """64 hex digits, of the names and contents of the files."""
    listed = sorted((file.name, file.size_bytes, file.sha256) for file in files)
    return sha256(json.dumps(listed).encode()).hexdigest()


@contextmanager
def incoming_folder(name: str) -> Iterator[Path]:
    """Hold the folder that a model's files are gathered in, which has those of a pull that was cut off.

    Raises Unavailable while another process pulls the same model, OSError where it cannot be made.
    """
    check_kept_name(name)
    folder, lock = _incoming_of(name), store_folder() / LOCKS / quote(name, safe="")
    make_private_folder(lock.parent)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise Unavailable(f"another `penstock pull` fetches {name}; wait for its end") from error
    try:
        make_private_folder(folder)
        yield folder
    finally:
        os.close(handle)


def keep_model(model: KeptModel, incoming: Path) -> None:
    """Let `model` be seen, whose files are in `incoming`, in the place of what had its name.

    Raises OSError.
    """
    names = {file.name for file in model.files}
    for path in incoming.iterdir():
        if path.name not in names:
            _remove(path)
    for path in incoming.iterdir():
        sync(path)
    root = store_folder()
    make_private_folder(root / ENTRIES)
    make_private_folder(_files_of(model.name))
    with locked_folder(root):
        if model.folder.exists():  # the same files, of an entry that was lost or is written anew
            _remove(model.folder)
        incoming.rename(model.folder)
        sync(model.folder.parent)
        write_file(_entry_of(model.name), json.dumps(asdict(model)).encode())
        for other in model.folder.parent.iterdir():
            if other != model.folder:
                _remove(other)


def check_anything_kept(name: str) -> None:
    """Raise NotFound where there is neither a model of that name nor what a pull of it has left."""
    check_kept_name(name)
    if not any(place.exists() for place in (_entry_of(name), _files_of(name), _incoming_of(name))):
        raise NotFound(f"no model {name} is kept; `penstock list` shows those that are")


def forget_model(name: str) -> int:
    """Remove the model of that name, and what a pull of it has left; return how many bytes that were.

    Raises NotFound where there is neither, Unavailable while it is pulled, OSError.
    """
    check_anything_kept(name)
    entry, folders = _entry_of(name), (_files_of(name), _incoming_of(name))
    with incoming_folder(name), locked_folder(store_folder()):
        entry.unlink(missing_ok=True)  # first: what is seen is whole
        freed_bytes = sum(_bytes_of(folder) for folder in folders)
        for folder in folders:
            _remove(folder)
    return freed_bytes


def _read_entry(entry: Path) -> KeptModel | None:
    try:
        with entry.open("rb") as file:
            told = json.loads(file.read(MAX_ENTRY_BYTES))
        files = tuple(KeptFile(**each) for each in told.pop("files"))
        return _checked(KeptModel(**told, files=files), entry)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        name = unquote(entry.name.removesuffix(SUFFIX))
        raise InvalidRequest(
            f"the entry {entry} cannot be used; remove it with `penstock rm {name}`, and pull it again"
        ) from error


def _checked(model: KeptModel, entry: Path) -> KeptModel:
    """Return `model`; raises ValueError for one that this entry cannot be of."""
    if _entry_of(model.name) != entry or not _DIGEST.fullmatch(model.digest):
        raise ValueError(entry.name)
    return model


def _entry_of(name: str) -> Path:
    return store_folder() / ENTRIES / f"{quote(name, safe='')}{SUFFIX}"


def _files_of(name: str) -> Path:
    return store_folder() / FILES / quote(name, safe="")


def _incoming_of(name: str) -> Path:
    return store_folder() / INCOMING / quote(name, safe="")


def _bytes_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
