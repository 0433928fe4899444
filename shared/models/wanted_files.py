"""Choose the files of a repository or a folder that make up a model: no pickles, no second copies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from shared.engine.loading.gguf.find_file import SUFFIX
from shared.engine.loading.gguf.parts import part_paths
from shared.errors import InvalidRequest

CARD = "README.md"
CHECKPOINT_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", CARD)
MAX_MODEL_FILES = 2048
"""The most files of a model."""
MAX_FILE_NAME_CHARS = 200
"""The longest name of a file of a model."""
MAX_SHOWN = 12
"""The most files that an error lists."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+ -]*")


def wanted_files(names: Sequence[str], of: str, pick: str = "") -> tuple[str, ...]:
    """Return those of `names` that make up the model `of`; names of files in folders inside are left out.

    `pick`: the GGUF file that is meant where there are several. Raises InvalidRequest where it is not clear
    which are meant, and where there is no model.
    """
    plain = sorted({name for name in names if len(name) <= MAX_FILE_NAME_CHARS and _PLAIN.fullmatch(name)})
    ggufs = [name for name in plain if name.endswith(SUFFIX)]
    checkpoint = [name for name in plain if any(fnmatchcase(name, each) for each in CHECKPOINT_FILES)]
    if pick or not any(name.endswith(".safetensors") for name in checkpoint):
        chosen = _chosen_gguf(ggufs, of, pick) + [name for name in plain if name == CARD]
    else:
        chosen = checkpoint
    if len(chosen) > MAX_MODEL_FILES:
        raise InvalidRequest(f"{of} has {len(chosen)} files; a model has at most {MAX_MODEL_FILES}")
    return tuple(chosen)


def _chosen_gguf(names: Sequence[str], of: str, pick: str) -> list[str]:
    firsts = {part_paths(Path(name))[0].name for name in names}
    if pick:
        if pick not in names:
            raise InvalidRequest(
                f"{of} has no GGUF file {pick!r} with a name of letters, digits and . _ + -; it has "
                f"{_listed(sorted(firsts))}"
            )
        firsts = {part_paths(Path(pick))[0].name}
    if not firsts:
        raise InvalidRequest(
            f"{of} has neither safetensors nor a GGUF file: there is no model in it to serve"
        )
    if len(firsts) > 1:
        raise InvalidRequest(
            f"{of} has {len(firsts)} GGUF models: {_listed(sorted(firsts))}; say which with --file"
        )
    parts = [part.name for part in part_paths(Path(firsts.pop()))]
    missing = [part for part in parts if part not in names]
    if missing:
        raise InvalidRequest(f"{of} lacks {missing[0]}: all {len(parts)} parts of a model are needed")
    return parts


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (", …" if len(names) > MAX_SHOWN else "") if names else "none"
