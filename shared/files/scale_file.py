"""The file in a state directory that says how many instances its stack is to have: `penstock scale` writes
it, and the launcher follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.files.command_file import read_command_file, write_command_file

SCALE_NAME = "scale.json"
MAX_SCALE_BYTES = 1 << 16
"""The longest such file that is read."""
MAX_INSTANCES = 64
"""The most instances of a role that a stack is scaled to."""
MAX_ABSENT = 512
"""The most instances that are named as absent."""


@dataclass(frozen=True, slots=True)
class StackScale:
    """`number` is that of the command. `counts`: of these roles there are to be so many instances, from 1 to
    MAX_INSTANCES, but for those by name that are `absent`: of several models one has fewer than another. Who
    ends has `patience_s` for what it has, where its own drain timeout is not longer."""

    number: int
    counts: Mapping[str, int]
    patience_s: float
    absent: tuple[str, ...] = ()


def write_scale(state_dir: Path, scale: StackScale) -> None:
    """Raises InvalidRequest where it cannot be written."""
    write_command_file(state_dir / SCALE_NAME, scale)


def read_scale(state_dir: Path) -> StackScale | None:
    """Return what the file says, None where there is none. Raises InvalidRequest for what is no such file."""
    return read_command_file(state_dir / SCALE_NAME, MAX_SCALE_BYTES, _checked, "remove it, and scale again")


def _checked(said: dict[str, Any]) -> StackScale:
    counts = {str(role): int(count) for role, count in said["counts"].items()}
    if not all(1 <= count <= MAX_INSTANCES for count in counts.values()):
        raise ValueError(f"counts are from 1 to {MAX_INSTANCES}")
    absent = tuple(str(name) for name in said.get("absent", ()))
    if len(absent) > MAX_ABSENT:
        raise ValueError(f"absent are up to {MAX_ABSENT} names")
    return StackScale(int(said["number"]), counts, float(said["patience_s"]), absent)
