"""The finds that are kept: one file for each input that once broke an invariant, by target."""

from __future__ import annotations

import hashlib
from pathlib import Path

FINDS = Path(__file__).parent / "finds"
NAME_CHARS = 12


def kept_finds(target: str) -> list[Path]:
    """Return the files of a target, in a fixed order."""
    return sorted((FINDS / target).glob("*")) if (FINDS / target).is_dir() else []


def keep_find(target: str, data: bytes) -> Path:
    """Write an input where `make test` replays it; one that is there already is the same file."""
    folder = FINDS / target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:NAME_CHARS]
    path.write_bytes(data)
    return path
