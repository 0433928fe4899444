"""The file in a state directory that says how many instances its stack is to have: `penstock scale` writes
it, and the launcher follows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest
from shared.files.atomic_write import write_secret

SCALE_NAME = "scale.json"
MAX_SCALE_BYTES = 1 << 16
"""The longest such file that is read."""
MAX_INSTANCES = 64
"""The most instances of a role that a stack is scaled to."""


@dataclass(frozen=True, slots=True)
class StackScale:
    """`number` is that of the command. `counts`: of these roles there are to be so many instances, from 1 to
    MAX_INSTANCES. Who ends has `patience_s` for what it has, where its own drain timeout is not longer."""

    number: int
    counts: Mapping[str, int]
    patience_s: float


def write_scale(state_dir: Path, scale: StackScale) -> None:
    """Raises InvalidRequest where it cannot be written."""
    try:
        write_secret(state_dir / SCALE_NAME, json.dumps(asdict(scale), indent=1) + "\n")
    except OSError as error:
        raise InvalidRequest(
            f"{state_dir / SCALE_NAME} cannot be written: {error.strerror or error}; make room there"
        ) from error


def read_scale(state_dir: Path) -> StackScale | None:
    """Return what the file says, None where there is none. Raises InvalidRequest for what is no such file."""
    path = state_dir / SCALE_NAME
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(MAX_SCALE_BYTES))
        return _checked(said)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{path} cannot be read ({error}); remove it, and scale again") from error


def _checked(said: dict[str, Any]) -> StackScale:
    counts = {str(role): int(count) for role, count in said["counts"].items()}
    if not all(1 <= count <= MAX_INSTANCES for count in counts.values()):
        raise ValueError(f"counts are from 1 to {MAX_INSTANCES}")
    return StackScale(int(said["number"]), counts, float(said["patience_s"]))
