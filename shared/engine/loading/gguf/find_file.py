"""Tell whether a model is a GGUF file. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from shared.engine.loading.gguf.parts import part_paths
from shared.errors import InvalidRequest

SUFFIX = ".gguf"


def find_gguf(model: str | Path) -> Path | None:
    """The file that `model` names, or the one in the folder `model`; None for a Hugging Face directory.

    Of a model in several parts it is the first, whichever is named. A folder with a config.json is a Hugging
    Face directory, whatever else lies in it. Raises InvalidRequest for a folder in which there are several
    GGUF models.
    """
    path = Path(model)
    if path.is_file():
        return part_paths(path)[0] if path.suffix == SUFFIX else path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = [each for each in path.iterdir() if each.suffix == SUFFIX and each.is_file()]
    firsts = sorted({part_paths(each)[0] for each in files})
    if len(firsts) > 1:
        names = ", ".join(each.name for each in firsts[:3])
        raise InvalidRequest(f"{str(path)!r} holds {len(firsts)} GGUF models ({names}, …); name one of them")
    return firsts[0] if firsts else None
