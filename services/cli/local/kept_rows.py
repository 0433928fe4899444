"""Show models that are kept, and tell which running stack serves one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services.cli.stack_file import NoStack, stack_models
from shared.files.model_store import KeptModel, kept_path
from shared.files.stack_register import running_stacks

HEAD = ("name", "size", "format", "quantization", "pulled")


def row_of(model: KeptModel) -> tuple[str, ...]:
    return (
        model.name,
        size_words(model.size_bytes),
        model.model_format,
        model.quantization,
        _time_of(model).strftime("%Y-%m-%d %H:%M"),
    )


def described(model: KeptModel) -> Mapping[str, Any]:
    """Return a model as an object of JSON."""
    return {
        "name": model.name,
        "size_bytes": model.size_bytes,
        "format": model.model_format,
        "quantization": model.quantization,
        "pulled": _time_of(model).isoformat(timespec="seconds"),
        "digest": model.digest,
        "source": model.source,
        "revision": model.revision,
        "path": str(model.folder),
    }


def size_words(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"


def served_from(name: str) -> str:
    """Return the state directory of a running stack that serves the model, or that has not said yet what it
    serves; "" where none does."""
    folder = kept_path(name)
    if folder is None:
        return ""
    for state_dir in running_stacks():
        try:
            served = stack_models(state_dir, "--state-dir DIR")
        except NoStack:  # it is still being started, and may be about to read the files
            return str(state_dir)
        if any(Path(path).is_relative_to(folder) for path in served):
            return str(state_dir)
    return ""


def _time_of(model: KeptModel) -> datetime:
    return datetime.fromtimestamp(model.pulled_unix_us / 1e6, UTC)
