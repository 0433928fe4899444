"""What processes have cost so far, as their kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path


def pss_mb(pid: int) -> float:
    """Its memory; what several share counts once for all of them together."""
    (line,) = [
        each for each in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if each.startswith("Pss:")
    ]
    return int(line.split()[1]) / 1024


def cpu_s(pid: int) -> float:
    """User and system time of all threads that it has and had, in ticks of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
