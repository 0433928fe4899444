"""Write a safetensors file that is whole or absent: an interrupted write leaves what was there before."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from shared.files.atomic_write import new_file


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write `tensors` for whom the umask lets read: `save_file` alone makes a file for its owner.

    Raises OSError; ValueError for a tensor that is not contiguous.
    """
    with new_file(path) as new:
        save_file(tensors, new, metadata)
