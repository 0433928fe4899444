"""The file in a state directory that says how its stack is rolled: `penstock roll` writes it, the launcher
follows it, and the next `penstock roll` goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.files.command_file import read_command_file, write_command_file

ROLL_NAME = "roll.json"
MAX_ROLL_BYTES = 1 << 20
"""The longest such file that is read."""


@dataclass(frozen=True, slots=True)
class StackRoll:
    """`number` is that of the command that rolls; `python` runs the code in `root` from then on, and `digest`
    says what that code is. `lives` are the processes of the instances of `roles` as they were before.

    `stand_in` is an instance beside those of the stack, which does what `stands_for` does; "" for none.
    """

    number: int
    python: str
    root: str
    digest: str
    roles: tuple[str, ...]
    lives: Mapping[str, int] = field(default_factory=dict)
    stand_in: str = ""
    stands_for: str = ""
    is_done: bool = False


def stand_in_name(role: str, instances: int) -> str:
    """Return the name of what stands in for one of so many instances of a role: the next that is free."""
    return f"{role}-{instances}"


def write_roll(state_dir: Path, roll: StackRoll) -> None:
    """Raises InvalidRequest where it cannot be written."""
    write_command_file(state_dir / ROLL_NAME, roll)


def read_roll(state_dir: Path) -> StackRoll | None:
    """Return what the file says, None where there is none. Raises InvalidRequest for what is no such file."""
    return read_command_file(state_dir / ROLL_NAME, MAX_ROLL_BYTES, _checked, "remove it to roll all anew")


def _checked(said: dict[str, Any]) -> StackRoll:
    return StackRoll(
        number=int(said["number"]),
        python=str(said["python"]),
        root=str(said["root"]),
        digest=str(said["digest"]),
        roles=tuple(map(str, said["roles"])),
        lives={str(name): int(pid) for name, pid in said["lives"].items()},
        stand_in=str(said["stand_in"]),
        stands_for=str(said["stands_for"]),
        is_done=bool(said["is_done"]),
    )
