"""Pull a model into the store: from the hub, from a folder, or from a GGUF file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.deadline import SYSTEM_CLOCK
from shared.engine.loading.gguf.find_file import find_gguf
from shared.errors import InvalidRequest
from shared.files.atomic_write import write_file
from shared.files.model_store import (
    KeptFile,
    KeptModel,
    check_kept_name,
    digest_of,
    find_kept,
    incoming_folder,
    keep_model,
)
from shared.models.file_check import check_digest, copy_file, digest_file
from shared.models.hub_file import fetch_file
from shared.models.model_facts import format_of, quantization_of
from shared.models.wanted_files import CARD, wanted_files
from shared.text.hub_fetch import hub_answers

MAX_MODEL_BYTES = 1 << 43
"""The most bytes of a model, 8 TiB."""
SPARE_BYTES = 64 << 20
"""The room that a disk keeps when a model is on it."""

COMMIT_MARK = ".commit"
"""The file that says of which commit of the hub the files are that have come."""

PullProgress = Callable[[str, int, int], None]
"""(what is done, bytes that are done, bytes in all)."""
ALL_BYTES = "fetching"
CHECKED_BYTES = "checking"
COPIED_BYTES = "copying"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub states it: its sha256 where it is a large one, else git's name of its content."""

    name: str
    size_bytes: int
    sha256: str
    git_sha1: str


@dataclass(slots=True)
class _Counter:
    """Counts bytes of one kind of work."""

    progress: PullProgress
    doing: str
    total: int
    done: int = 0

    def note(self, more: int) -> None:
        self.done += more
        self.progress(self.doing, self.done, self.total)


def pull_from_hub(name: str, progress: PullProgress, pick: str = "") -> KeptModel:
    """Fetch the model `name`, ORG/NAME or ORG/NAME@REVISION, and keep it; what a cut off pull has is not
    fetched again. `pick`: which GGUF file is meant.

    Raises NotFound where there is no such model, Unavailable where it does not come, ChecksumMismatch where
    it is not what the hub says, InvalidRequest for what is no model, OSError.
    """
    from huggingface_hub import HfApi, hf_hub_url  # noqa: PLC0415 - a second of import time
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # noqa: PLC0415 - as above

    check_kept_name(name)
    repository, _, revision = name.partition("@")
    with hub_answers(repository):
        info = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
    commit = str(info.sha)
    files = _stated_files(info.siblings or (), repository, pick)
    known = find_kept(name)
    if (
        known is not None
        and known.folder.is_dir()
        and known.revision == commit
        and {f.name for f in known.files} == {f.name for f in files}
    ):
        return known
    with incoming_folder(name) as incoming:
        _begin(incoming, commit)
        _check_room(incoming, sum(file.size_bytes for file in files))
        fetched = _Counter(progress, ALL_BYTES, sum(file.size_bytes for file in files))
        for file in files:
            url = hf_hub_url(repository, file.name, revision=commit)
            fetch_file(url, build_hf_headers(), incoming / file.name, file.size_bytes, fetched.note)
        checked = _Counter(progress, CHECKED_BYTES, fetched.total)
        kept = []
        for file in files:
            found = digest_file(incoming / file.name, checked.note)
            check_digest(incoming / file.name, found, file.sha256, file.git_sha1)
            kept.append(found)
        return _keep(name, repository, commit, incoming, kept)


def pull_from_disk(path: Path, name: str, progress: PullProgress, pick: str = "") -> KeptModel:
    """Copy the model at `path`, a folder or a GGUF file, and keep it as `name`.

    Raises InvalidRequest for what is no model, Unavailable while another one pulls it, OSError.
    """
    check_kept_name(name)
    sources = _files_on_disk(path, pick)
    with incoming_folder(name) as incoming:
        total = sum(file.stat().st_size for file in sources)
        _check_room(incoming, total)
        (incoming / COMMIT_MARK).unlink(missing_ok=True)  # what is here is of no commit from now on
        copied = _Counter(progress, COPIED_BYTES, total)
        kept = [copy_file(file, incoming / file.name, copied.note) for file in sources]
        return _keep(name, str(path.resolve()), "", incoming, kept)


def _files_on_disk(path: Path, pick: str) -> list[Path]:
    if path.is_file():
        gguf = find_gguf(path)
        if gguf is None or gguf.suffix != ".gguf":
            raise InvalidRequest(f"{path} is no GGUF file; give one, or a model's folder")
        path, pick = gguf.parent, gguf.name
    names = [each.name for each in path.iterdir() if each.is_file()]
    wanted = wanted_files(names, str(path), pick)
    if pick:  # whatever else lies beside it, such as a card, may be another model's
        wanted = tuple(each for each in wanted if each != CARD)
    return [path / each for each in wanted]


def _stated_files(siblings: Sequence[Any], repository: str, pick: str) -> list[HubFile]:
    by_name = {str(each.rfilename): each for each in siblings}
    files = []
    for name in wanted_files(list(by_name), repository, pick):
        stated = by_name[name]
        sha256 = str(stated.lfs.sha256) if stated.lfs else ""
        if not isinstance(stated.size, int) or stated.size < 0 or not (sha256 or stated.blob_id):
            raise InvalidRequest(f"the hub says neither size nor checksum of {name}: it cannot be checked")
        files.append(HubFile(name, stated.size, sha256, str(stated.blob_id or "")))
    return files


def _begin(incoming: Path, commit: str) -> None:
    """Leave what a cut off pull of the same commit has; parts of another one would be mixed up with it."""
    mark = incoming / COMMIT_MARK
    if not mark.is_file() or mark.read_text() != commit:
        for path in incoming.iterdir():
            path.unlink()
        write_file(mark, commit.encode())


def _check_room(folder: Path, size_bytes: int) -> None:
    """Raise InvalidRequest where so much does not fit beside what is there of it."""
    if size_bytes > MAX_MODEL_BYTES:
        raise InvalidRequest(f"the model has {size_bytes} bytes; at most {MAX_MODEL_BYTES} are taken")
    here = sum(path.lstat().st_size for path in folder.iterdir() if path.is_file())
    free = shutil.disk_usage(folder).free + here
    if size_bytes + SPARE_BYTES > free:
        raise InvalidRequest(
            f"the model has {size_bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free at {folder}; make "
            "room there, or set XDG_CACHE_HOME to another disk"
        )


def _keep(name: str, source: str, revision: str, incoming: Path, files: Sequence[KeptFile]) -> KeptModel:
    listed = tuple(sorted(files, key=lambda file: file.name))
    model = KeptModel(
        name=name,
        source=source,
        revision=revision,
        digest=digest_of(listed),
        model_format=format_of([file.name for file in listed]),
        quantization=quantization_of(incoming, [file.name for file in listed]),
        pulled_unix_us=SYSTEM_CLOCK.unix_us(),
        files=listed,
    )
    keep_model(model, incoming)
    return model
