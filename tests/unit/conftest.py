"""Small models with random weights for unit tests, saved once for all modules of a test process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engine import save_random_model
from tests.support.grammar import save_model_with_tokenizer


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without a tokenizer. Tests read it; one that changes a checkpoint saves its own."""
    return save_random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def llm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer has a token per character that the grammars of tests need."""
    return save_model_with_tokenizer(tmp_path_factory.mktemp("model"))
