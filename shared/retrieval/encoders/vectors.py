"""The vectors that texts become to be compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
"""[texts, dimensions], each row of length 1."""
