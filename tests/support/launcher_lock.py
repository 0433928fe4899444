"""The lock of a state directory, held as its launcher holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.files.stack_register import LOCK_NAME


@contextmanager
def held_lock(folder: Path, content: object = None) -> Iterator[None]:
    """`content` is what is in it: the number of this process where nothing else is said."""
    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid() if content is None else content}\n")
        lock.flush()
        yield
