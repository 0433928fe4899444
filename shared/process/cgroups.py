"""Find the control groups that bound this process, of version 2 or 1."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cgroup_folders(controller: str, root: Path | None = None, membership: Path | None = None) -> list[Path]:
    """Return the cgroup of this process and those above it, as far as they can be seen from here; of version
    1 those of `controller`."""
    root = root or CGROUPS
    try:
        lines = (membership or MEMBERSHIP).read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = (root, root / "unified")
        elif controller in controllers.split(","):
            mounts = (root / controller, root / controllers)
        else:
            continue
        for mount in mounts:
            own = mount / path.lstrip("/")
            folders += [own, *(parent for parent in own.parents if parent.is_relative_to(mount))]
    return folders
