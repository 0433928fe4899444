"""Folders that are the same for all tests of a run: each is made by the first of its processes that asks."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

RUN_CACHE = "penstock-cache-"
"""The folder of users' caches is named so in a run, which removes it (`tests/conftest.py`)."""


class MadeOnce:
    """Folders of flat files; outside of a run of the tests they are one process' own."""

    def __init__(self, kind: str) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if cache.name.startswith(RUN_CACHE):
            self._root = cache / "made-once" / kind
            self._root.mkdir(parents=True, exist_ok=True)
        else:
            self._own = tempfile.TemporaryDirectory(prefix=f"penstock-{kind}-")  # as long as this is
            self._root = Path(self._own.name)

    def copy(self, name: str, folder: Path, make: Callable[[Path], object]) -> None:
        """Copy what `make` writes to an empty folder, which `name` stands for; the copy may be changed."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in self._made(name, make).iterdir():
            (folder / file.name).unlink(missing_ok=True)  # whoever has it open keeps what it was
            shutil.copyfile(file, folder / file.name)

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        place = self._root / hashlib.sha256(name.encode()).hexdigest()[:32]
        if place.exists():
            return place
        new = Path(tempfile.mkdtemp(dir=self._root))
        make(new)
        try:
            new.rename(place)
        except OSError:  # another process was faster
            if not place.exists():
                raise
            shutil.rmtree(new)
        return place
