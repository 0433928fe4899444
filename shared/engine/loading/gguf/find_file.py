"""Whether a model is a GGUF file. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from shared.errors import InvalidRequest

SUFFIX = ".gguf"


def find_gguf(model: str | Path) -> Path | None:
    """The file that `model` names, or the one in the folder `model`; None for a Hugging Face directory.

    A folder with a config.json is a Hugging Face directory, whatever else lies in it. Raises InvalidRequest
    for a folder in which there are several GGUF files.
    """
    path = Path(model)
    if path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = sorted(each for each in path.iterdir() if each.suffix == SUFFIX and each.is_file())
    if len(files) > 1:
        names = ", ".join(each.name for each in files[:3])
        raise InvalidRequest(f"{str(path)!r} holds {len(files)} GGUF files ({names}, …); name one of them")
    return files[0] if files else None
