"""Map an array of an index from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch


def mapped_array(path: Path) -> npt.NDArray[Any]:
    """Map a file that `np.save` has written. Raises ChecksumMismatch for any other.

    The library takes the head of such a file for Python, whose reading fails in many ways.
    """
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise ChecksumMismatch(f"{path} cannot be read ({error.strerror})") from error
    except Exception as error:
        raise ChecksumMismatch(f"{path} holds no array ({type(error).__name__})") from error
