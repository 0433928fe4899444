"""Find the draft head of a model: the one that is named, or the one that ships, for the model that ships."""

from __future__ import annotations

from pathlib import Path

from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.text.default_model import FILE_BYTES

SHIPPED_HEAD = Path(__file__).parents[2] / "demo" / "heads" / "smollm2"
"""Its directory, which has the card, too."""
TARGET_DIGEST = "127673a4c533f1384d7dbd95dcee4884"
"""The digest of the checkpoint that it is for, as its config.json says it."""

SHIPPED, NO_HEAD = "auto", "none"
"""The names of a draft head that are no directories."""


def head_directory(named: str, model: Path, *, device: str, tensor_parallel: int) -> str:
    """Return the directory of the head that `named` means for `model`; "" for none, as where what computes
    the model has no head."""
    if named != SHIPPED:
        return "" if named == NO_HEAD else named
    shipped = shipped_head(model) if device == "cpu" and tensor_parallel == 1 else None
    return "" if shipped is None else str(shipped)


def shipped_head(model: Path) -> Path | None:
    """Return the directory of the head for `model`; None where it is another one than the one that ships."""
    is_as_long = model.is_file() and model.stat().st_size == FILE_BYTES
    return SHIPPED_HEAD if is_as_long and checkpoint_digest(model) == TARGET_DIGEST else None
