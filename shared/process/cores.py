"""The cores that this process may use: those of its CPUs, as far as its cgroup grants them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shared.process.cgroups import cgroup_folders


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """Time on so many cores, granted to a cgroup and to all in it; `inode` is that of the cgroup's folder,
    by which others of this host know it, whatever it is called in their containers.
    """

    cores: float
    inode: int


def usable_cores() -> int:
    """Count the cores that this thread may use at a time; at least one. Of a quota only whole cores count: a
    thread more uses it up early, and then all of them stand still until the next period.
    """
    quota = cpu_quota()
    cores = len(usable_cpus())
    return cores if quota is None else max(1, min(cores, int(quota.cores)))


def usable_cpus() -> frozenset[int]:
    """The numbers of the CPUs that this thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: Path | None = None, membership: Path | None = None) -> CpuQuota | None:
    """The least that this process's cgroup or one above it is granted, of version 2 or 1; None: no limit."""
    quotas = [
        quota
        for folder in cgroup_folders("cpu", root, membership)
        if (quota := _quota_of(folder)) is not None
    ]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def _quota_of(folder: Path) -> CpuQuota | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        if quota in ("max", "-1"):
            return None
        return CpuQuota(int(quota) / int(period), folder.stat().st_ino)
    except (OSError, ValueError, ZeroDivisionError):  # not there, or nothing that we know how to read
        return None
