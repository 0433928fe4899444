"""Packed weights that outlive the process that packed them: one file per model, shared by all of a host."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import structlog
import torch
import xxhash

from shared.engine.engine_config import EngineConfig
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.model_config import ModelConfig
from shared.engine.loading.weight_files import weight_files
from shared.engine.native.library import ABI, library_path
from shared.engine.native.packed_file import PackedFileError, open_packed_file, write_packed_file
from shared.engine.native.packing import NORMS, PackedPart

log = structlog.get_logger()

WAIT_S = 300.0
"""The longest wait for another process that packs the same weights; then they are packed here, in memory."""
_POLL_S = 0.02
_SUFFIX, _UNFINISHED = ".safetensors", ".unfinished"
_PACKING_SOURCES = ("packing.py", "packed_file.py", "encoder.py")
_PARTS_BESIDE_NORMS = 7  # of a layer, besides its experts: packing.py yields no more
_HEADER_BYTES_PER_PART = 1024  # names, shapes and places of a matrix's four pieces take about half of it


def weight_cache_folder(configured: str) -> Path:
    """Return where it is when nothing is configured: with the other caches of the user."""
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "penstock" / "weights"


def weights_key(config: EngineConfig, model: ModelConfig) -> str:
    """32 hex digits, equal where packing gives the same bytes: the same checkpoint, settings, code and CPU.

    The digest of a checkpoint takes samples of long files, so the time when each was written counts as well.
    """
    facts = [
        *(checkpoint_digest(config.model_dir), model.dtype, config.quantization, config.quant_group),
        *(path.stat().st_mtime_ns for path in weight_files(Path(config.model_dir))),
    ]
    return cache_key(facts)


def cache_key(facts: Iterable[object]) -> str:
    """Return the name of what is packed: 32 hex digits of what is known of it, and of the code and CPU."""
    facts = [*facts, ABI, torch.__version__, _code_digest(library_path())]
    return blake2b("\n".join(map(str, facts)).encode(), digest_size=16).hexdigest()


@functools.cache
def _code_digest(kernels: Path | None) -> str:
    """Digest the code of all that reads, quantizes and packs, of which `kernels` is compiled."""
    here = Path(__file__).parent
    sources = sorted((here.parent / "loading").rglob("*.py"))
    digest = xxhash.xxh3_128()
    for path in (*sources, *(here / name for name in _PACKING_SOURCES), kernels):
        if path is not None:
            digest.update(path.read_bytes())
    return digest.hexdigest()


class WeightCache:
    """A folder of files that the weights of models are mapped from, of `most_bytes` at most.

    Whatever is wrong with it costs time alone: it is logged, and the weights are packed in memory.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    @classmethod
    def of(cls, folder: str, most_mb: int) -> WeightCache | None:
        """Return the one that is configured; None for none."""
        return cls(weight_cache_folder(folder), most_mb << 20) if most_mb else None

    def file(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def load(
        self,
        kernels: ctypes.CDLL,
        key: str,
        num_parts: int,
        pack: Callable[[], Iterable[tuple[str, PackedPart]]],
    ) -> dict[str, PackedPart] | None:
        """The parts that `pack` makes, `num_parts` at most, which is called where no file has them yet. None:
        they must be had without the cache. Raises what `pack` does."""
        path = self.file(key)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                return _opened(kernels, path, key)
            except FileNotFoundError:
                pass
            except PackedFileError as error:
                log.warning("weight_cache_damaged", file=str(path), why=str(error))
            return self._written(kernels, path, key, num_parts, pack)
        except (PackedFileError, OSError) as error:
            log.warning("weight_cache_not_used", file=str(path), why=str(error))
            return None

    def _written(
        self,
        kernels: ctypes.CDLL,
        path: Path,
        key: str,
        num_parts: int,
        pack: Callable[[], Iterable[tuple[str, PackedPart]]],
    ) -> dict[str, PackedPart]:
        unfinished = path.with_suffix(_UNFINISHED)
        with _locked(unfinished) as file:
            try:
                with suppress(FileNotFoundError, PackedFileError):
                    return _opened(kernels, path, key)  # who had the lock before has written it
                file.truncate(0)  # a process that died may have begun it
                header_bytes = _HEADER_BYTES_PER_PART * (num_parts + 1)
                write_packed_file(file, key, pack(), header_bytes=header_bytes, most_bytes=self._most_bytes)
                self._make_room(unfinished)
                unfinished.rename(path)
            finally:
                unfinished.unlink(missing_ok=True)
        return open_packed_file(kernels, path, key)

    def _make_room(self, newest: Path) -> None:
        """The least recently used files go until the newest fits in; so do those whose writers have died."""
        free = self._most_bytes - newest.stat().st_size
        found = sorted(((path.stat(), path) for path in self._folder.glob(f"*{_SUFFIX}")), key=_last_use)
        for status, path in reversed(found):
            free -= status.st_size
            if free < 0:
                path.unlink(missing_ok=True)
        for path in self._folder.glob(f"*{_UNFINISHED}"):
            with path.open("rb") as file:
                if path != newest and _try_lock(file):
                    path.unlink(missing_ok=True)


def _opened(kernels: ctypes.CDLL, path: Path, key: str) -> dict[str, PackedPart]:
    """Raises as `open_packed_file` does."""
    parts = open_packed_file(kernels, path, key)
    with suppress(OSError):  # on a disk that is only read from
        os.utime(path)
    return parts


def _last_use(found: tuple[os.stat_result, Path]) -> int:
    return found[0].st_mtime_ns


def most_parts(model: ModelConfig) -> int:
    """Return how many parts `packed_parts` makes of a model, or a few more."""
    experts = sum(1 if layer.moe is None else layer.moe.num_experts for layer in model.layers)
    return 3 + (len(NORMS) + _PARTS_BESIDE_NORMS) * len(model.layers) + 2 * experts


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file, made where there is none, of which one process at a time is the owner.

    The lock ends with the process. Raises PackedFileError after WAIT_S.
    """
    give_up_s = time.monotonic() + WAIT_S
    while time.monotonic() < give_up_s:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            # Who had the lock before may have renamed or removed what we have open.
            if _try_lock(file) and _is_at(file, path):
                yield file
                return
        time.sleep(_POLL_S)
    raise PackedFileError(f"another process has not finished it within {WAIT_S:g} s")


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
