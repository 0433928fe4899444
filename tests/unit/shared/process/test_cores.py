from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.process.cores import cpu_quota, usable_cores


def cgroups(root: Path, membership: str, **limits: str) -> tuple[Path, Path]:
    """A tree of cgroups and what says which one we are in; `limits` by path, `__` for a slash."""
    for name, text in limits.items():
        folder = root / name.replace("__", "/")
        folder.mkdir(parents=True, exist_ok=True)
        if len(text.split()) == 2 and "cpu" not in folder.parts[len(root.parts) :][:1]:
            (folder / "cpu.max").write_text(text + "\n")
        else:
            quota, period = text.split()
            (folder / "cpu.cfs_quota_us").write_text(quota + "\n")
            (folder / "cpu.cfs_period_us").write_text(period + "\n")
    (root / "membership").write_text(membership)
    return root, root / "membership"


@pytest.mark.parametrize(
    ("membership", "limits", "cores"),
    [
        ("0::/a/b\n", {"a__b": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a__b": "400000 100000", "a": "200000 100000"}, 2.0),
        ("0::/a/b\n", {"a__b": "max 100000", "a": "max 100000"}, None),
        ("0::/\n", {"unified__x": "100000 100000"}, None),
        ("2:cpuacct,cpu:/k\n1:memory:/k\n", {"cpu__k": "300000 100000"}, 3.0),
        ("2:cpu:/k\n", {"cpu__k": "-1 100000", "cpu": "100000 200000"}, 0.5),
        ("1:cpuset:/k\n", {"cpu__k": "100000 100000"}, None),
        ("0::/a\n", {"a": "many 100000"}, None),
    ],
)
def test_the_least_quota_of_a_cgroup_and_those_above_it_counts(
    membership: str, limits: dict[str, str], cores: float | None, tmp_path: Path
) -> None:
    quota = cpu_quota(*cgroups(tmp_path, membership, **limits))
    assert (None if quota is None else quota.cores) == cores


def test_a_quota_is_known_by_the_folder_that_has_it(tmp_path: Path) -> None:
    quota = cpu_quota(*cgroups(tmp_path, "0::/a/b\n", a__b="max 100000", a="200000 100000"))
    assert quota is not None
    assert quota.inode == (tmp_path / "a").stat().st_ino


def test_where_nothing_tells_of_cgroups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("limit", "cores"), [("50000 100000", 1), ("199999 100000", 1), ("900000 100000", 9)]
)
def test_whole_cores_of_a_quota_are_used_and_no_more_than_there_are(
    limit: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, membership = cgroups(tmp_path, "0::/a\n", a=limit)
    monkeypatch.setattr("shared.process.cgroups.CGROUPS", root)
    monkeypatch.setattr("shared.process.cgroups.MEMBERSHIP", membership)
    assert usable_cores() == min(cores, len(os.sched_getaffinity(0)))
