"""Find the files that make up a model's weights, and whether they are whole. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.parts import part_paths, read_header
from shared.errors import InvalidRequest, NotFound

MAX_INDEX_BYTES = 64 << 20
"""The longest model.safetensors.index.json."""


def check_weight_files(folder: Path) -> None:
    """Read the headers of all, which also tell how long the files must be. Raises as `Checkpoint` does."""
    gguf = find_gguf(folder)
    if gguf is not None:
        read_header(gguf)
        return
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                file.keys()
        except (SafetensorError, OSError) as error:
            raise damaged_file(path, error) from error


def damaged_file(path: Path, error: Exception) -> InvalidRequest:
    return InvalidRequest(f"{path.name} is damaged ({error}); download the model again")


def weight_files(folder: Path) -> Iterator[Path]:
    """Return the files in order. Raises NotFound for missing ones, InvalidRequest for a wrong index."""
    gguf = find_gguf(folder)
    if gguf is not None:
        yield from part_paths(gguf)
        return
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        yield single
        return
    if not index.is_file():
        raise NotFound(
            f"{str(folder)!r} has neither model.safetensors nor model.safetensors.index.json; "
            "only safetensors checkpoints and GGUF files are read"
        )
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise InvalidRequest(f"{index.name} is larger than {MAX_INDEX_BYTES} bytes; download the model again")
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()), key=str)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{index.name} has no usable weight_map; download the model again") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidRequest(f"{index.name} names {name!r}, which is not a file beside it")
        if not (folder / name).is_file():
            raise NotFound(f"{name} is named by {index.name} but missing; download the model again")
        yield folder / name
