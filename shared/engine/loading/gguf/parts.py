"""GGUF models in several files, as llama.cpp's gguf-split writes them: NAME-00001-of-00003.gguf and so on.

The first part has the metadata of all; each says how many parts there are, which one it is, and how many
tensors all of them have. Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.gguf.header import GgufHeader, TensorPlace, read_file_header
from shared.errors import InvalidRequest, NotFound

MAX_PARTS = 1024
"""The most files of one model."""
_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def part_paths(path: Path) -> list[Path]:
    """Return all parts of the model that `path` is named as a part of, in order; else `path` alone.

    Raises InvalidRequest for a name that says what cannot be.
    """
    named = _PART_NAME.fullmatch(path.name)
    if named is None:
        return [path]
    number, count = int(named[2]), int(named[3])
    if not 1 <= number <= count <= MAX_PARTS:
        raise InvalidRequest(
            f"{path.name} is named as part {number} of {count}; there may be up to {MAX_PARTS} parts, "
            "numbered from 1: keep the names that the files were published with"
        )
    return [path.with_name(f"{named[1]}-{each:05}-of-{named[3]}.gguf") for each in range(1, count + 1)]


def read_header(path: Path) -> GgufHeader:
    """Read the header of a model: of a file, or of all its parts with the tensors of each.

    Raises NotFound where a file is missing, InvalidRequest with what is wrong in one.
    """
    paths = part_paths(path)
    try:
        first = read_file_header(path)
    except NotFound as error:
        if len(paths) == 1:
            raise
        raise NotFound(f"{path} is missing: all {len(paths)} parts of a model are needed") from error
    count = _number(first, "split.count", 1)
    if count in (0, 1):
        if len(paths) > 1:
            raise first.refused(
                f"it is a whole model, and its name says that it is one of {len(paths)} parts; "
                "give it a name without -of-"
            )
        return first
    if len(paths) != count or path != paths[0] or _number(first, "split.no", 0) != 0:
        raise first.refused(
            f"it is one of {count} parts; name the first, and keep the names that end in "
            f"-00001-of-{count:05}.gguf and so on"
        )
    tensors = dict(first.tensors)
    for number in range(1, count):
        tensors |= _tensors_of_part(first, paths[number], number, count, tensors.keys())
    stated = _number(first, "split.tensors.count", len(tensors))
    if stated != len(tensors):
        raise first.refused(
            f"its {count} parts hold {len(tensors)} tensors, and it says {stated}; download them again"
        )
    return replace(first, tensors=tensors)


def _tensors_of_part(
    first: GgufHeader, path: Path, number: int, count: int, known: Set[str]
) -> dict[str, TensorPlace]:
    try:
        part = read_file_header(path)
    except NotFound as error:
        raise NotFound(
            f"{path.name} is missing beside {first.path.name}: all {count} parts of a model are needed"
        ) from error
    said = _number(part, "split.no", 0), _number(part, "split.count", 1)
    if said != (number, count):
        raise part.refused(
            f"it says that it is part {said[0] + 1} of {said[1]}, and its name says {number + 1} of {count}; "
            "keep the names that the files were published with"
        )
    twice = sorted(part.tensors.keys() & known)
    if twice:
        raise part.refused(f"tensor {twice[0]} is in an earlier part, too; download all parts again")
    return part.tensors


def _number(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or not 0 <= value <= 1 << 31:
        raise header.refused(f"{key} is {shown(value)}, no count; download the file again")
    return value
