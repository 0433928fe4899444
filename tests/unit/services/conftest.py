"""What tests of workers compute with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.grammar import save_model_with_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model_with_tokenizer(tmp_path_factory.mktemp("model"))
