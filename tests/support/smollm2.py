"""SmolLM2-135M-Instruct as a GGUF file, where it is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.text.default_model import packaged_file


def smollm2_file() -> Path:
    """Skips the test where there is none: `make setup` installs it, or PENSTOCK_TEST_SMOLLM2 names it."""
    stated = os.environ.get("PENSTOCK_TEST_SMOLLM2")
    found = Path(stated) if stated else packaged_file()
    if found is None or not found.is_file():
        pytest.skip(
            "SmolLM2 is not installed: `make setup` fetches it, or PENSTOCK_TEST_SMOLLM2 names the file"
        )
    return found
