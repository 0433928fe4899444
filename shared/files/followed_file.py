"""Look at a file at intervals from an event loop, which may not be held up.

What the kernel knows of a file on a disk of this machine is told at once; a server of files may be gone, and
who asks for one of its files waits. So those are looked at in a thread, which costs an idle process more than
all else that it does then.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from shared.files.file_signature import FileSignature, file_signature

MOUNTS = Path("/proc/self/mountinfo")
LOCAL_KINDS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
"""The file systems that wait for nobody else."""
_OCTAL = re.compile(r"\\([0-7]{3})")


class FollowedFile:
    """One file, which may be there or not. On which file system it is, is found out once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = asyncio.Lock()
        """Held by who reads the file and puts it in force: who comes meanwhile finds it so."""
        self._is_local: bool | None = None

    async def signature(self) -> FileSignature:
        """Return what is another value once the file has changed."""
        if self._is_local is None:
            self._is_local = await asyncio.to_thread(is_local, self.path)
        if self._is_local:
            return file_signature(self.path)
        return await asyncio.to_thread(file_signature, self.path)


def is_local(file: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether the place of a file, links followed, is on one of LOCAL_KINDS; False where the system
    does not tell."""
    try:
        lines = mounts.read_text("utf-8", errors="surrogateescape").splitlines()
        place = file.resolve()
    except (OSError, RuntimeError):
        return False
    kinds: dict[Path, str] = {}  # of mounts at one place the last one counts
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        kinds[Path(point)] = after.split(" ")[0]
    found = next((kinds[each] for each in (place, *place.parents) if each in kinds), "")
    return found in LOCAL_KINDS
