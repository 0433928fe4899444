"""Tell how much memory this process and what it starts may still have, and who has ended for want of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.process.cgroups import cgroup_folders

MEMINFO = Path("/proc/meminfo")
STATUS = Path("/proc/self/status")
VMSTAT = Path("/proc/vmstat")
UNLIMITED_BYTES = 1 << 62
"""The least of the numbers by which a cgroup of version 1 says that it has no limit."""


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """The memory that a process and what it starts may have: its own and what is left, swap included; and
    where that is so."""

    available_bytes: int
    where: str


def memory_room(
    meminfo: Path | None = None,
    root: Path | None = None,
    membership: Path | None = None,
    status: Path | None = None,
) -> MemoryRoom | None:
    """Return the least of what the machine and the cgroups of this process have; None where nobody says."""
    machine = _numbers(meminfo or MEMINFO, scale=1024)
    swap, own = machine.get("SwapFree:", 0), _numbers(status or STATUS, scale=1024).get("RssAnon:", 0)
    rooms = [
        room
        for folder in cgroup_folders("memory", root, membership)
        if (room := _room_in(folder, swap)) is not None
    ]
    if "MemAvailable:" in machine:
        rooms.append(MemoryRoom(machine["MemAvailable:"] + swap, "on this machine"))
    least = min(rooms, key=lambda room: room.available_bytes, default=None)
    return None if least is None else MemoryRoom(least.available_bytes + own, least.where)


def memory_kills(vmstat: Path | None = None) -> int | None:
    """Count the processes that the kernel of this machine has killed for want of memory; None where it does
    not say."""
    return _numbers(vmstat or VMSTAT).get("oom_kill")


def _room_in(folder: Path, swap_bytes: int) -> MemoryRoom | None:
    """Return the room that a cgroup has left; pages of files count as room, as they can be read again."""
    statistics = _numbers(folder / "memory.stat")
    limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
    if limit is not None:
        swap_limit, swapped = (
            _number(folder / "memory.swap.max"),
            _number(folder / "memory.swap.current") or 0,
        )
        swap_bytes = swap_bytes if swap_limit is None else min(swap_bytes, max(0, swap_limit - swapped))
        files = statistics.get("inactive_file", 0) + statistics.get("active_file", 0)
    else:
        limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        files = statistics.get("total_inactive_file", 0) + statistics.get("total_active_file", 0)
    if limit is None or limit >= UNLIMITED_BYTES:
        return None
    return MemoryRoom(
        max(0, limit - (used or 0) + files) + swap_bytes, f"within the limit of the cgroup {folder}"
    )


def _number(file: Path) -> int | None:
    """The number in a file; None where there is none: "max" is no limit."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _numbers(file: Path, scale: int = 1) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    return dict(_lines_of(file, scale))


def _lines_of(file: Path, scale: int) -> Iterator[tuple[str, int]]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        name, *values = line.split()
        if values and values[0].isdecimal():
            yield name, int(values[0]) * scale
