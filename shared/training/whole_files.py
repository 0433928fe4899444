"""Files that are whole or absent: an interrupted write leaves what was there before."""

from __future__ import annotations

import stat
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_whole(path: Path, content: bytes) -> None:
    partial = _partial(path)
    partial.write_bytes(content)
    partial.replace(path)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, readable for whom the umask lets: `save_file` alone makes one for its owner."""
    partial = _partial(path)
    partial.unlink(missing_ok=True)
    partial.touch()
    mode = stat.S_IMODE(partial.stat().st_mode)
    save_file(tensors, partial, metadata)
    partial.chmod(mode)
    partial.replace(path)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
