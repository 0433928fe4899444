"""Where the real test data is; light, so that tests without a model need not load one's library."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def data_dir() -> Path | None:
    """The folder of real data, or None in a clone that has none."""
    folder = Path(os.environ.get("PENSTOCK_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    return folder if folder.is_dir() else None
