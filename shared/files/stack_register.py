"""Know which stacks of this user run: one small file for each, in a folder that only its owner reads."""

from __future__ import annotations

import fcntl
import os
from hashlib import sha256
from pathlib import Path
from typing import IO

from shared.files.private_folder import make_private_folder

LOCK_NAME = "stack.lock"
"""The file in a state directory that has the process id of its stack's launcher."""
MAX_ENTRY_BYTES = 4096
"""The longest entry that is read: the path of a state directory."""
MAX_STACKS = 64
"""The most entries that are looked at."""


def register_folder() -> Path:
    """Return where the entries are, as the XDG base directory specification has it."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "penstock" / "stacks"


def register_stack(state_dir: Path) -> None:
    """Let every command of this user find the stack of that state directory. Raises OSError."""
    entry = _entry_of(state_dir)
    make_private_folder(entry.parent)
    handle = os.open(entry, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(str(state_dir.resolve()))


def forget_stack(state_dir: Path) -> None:
    """The stack of that state directory has ended. Raises OSError."""
    _entry_of(state_dir).unlink(missing_ok=True)


def running_stacks() -> tuple[Path, ...]:
    """Return the state directories of this user's stacks that run; entries of others are removed."""
    folder, found = register_folder(), []
    try:
        entries = sorted(folder.iterdir())[:MAX_STACKS]
    except OSError:
        return ()
    for entry in entries:
        with entry.open("rb") as file:
            state_dir = Path(os.fsdecode(file.read(MAX_ENTRY_BYTES)))
        if launcher_of(state_dir) is None:
            entry.unlink(missing_ok=True)
        else:
            found.append(state_dir)
    return tuple(sorted(found))


def launcher_of(state_dir: Path) -> int | None:
    """Return the process id of the launcher that has this state directory, None where none runs.

    A launcher holds the lock for as long as it lives. The number alone says nothing: one that was killed
    leaves it behind, and it may be another process's by now.
    """
    try:
        with (state_dir / LOCK_NAME).open() as lock:
            if not _is_held(lock):
                return None
            pid = int(lock.read(20))
    except (OSError, ValueError):
        return None
    return pid if _is_there(pid) else None


def _is_held(lock: IO[str]) -> bool:
    """Return whether another has this lock; a launcher that asks for it meanwhile asks again."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _entry_of(state_dir: Path) -> Path:
    return register_folder() / sha256(os.fsencode(state_dir.resolve())).hexdigest()[:16]
