"""Folders with people's text in them: nobody but their owner looks into them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shared.files.atomic_write import SECRET_MODE

FOLDER_MODE = 0o700
"""Its owner alone may list such a folder, and reach what is in it."""


def make_private_folder(folder: Path) -> None:
    """Make the folder, and those above it that are missing, for their owner alone; what is there stays as it
    is. Raises OSError."""
    for each in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)


def keep_private(folder: Path) -> None:
    """Take from all others what they may do with the folder and all that is in it, as far as that is ours.
    Raises OSError."""
    for path in (folder, *folder.rglob("*")):
        found = path.lstat()
        wanted = FOLDER_MODE if stat.S_ISDIR(found.st_mode) else SECRET_MODE
        is_ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
        if is_ours and stat.S_IMODE(found.st_mode) != wanted:
            path.chmod(wanted)
