"""The cgroups of this process that can be seen, its own first."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.process.cgroups import cgroup_folders


@pytest.mark.parametrize(
    ("membership", "folders"),
    [
        ("0::/a/b\n", ["a/b", "a", ".", "unified/a/b", "unified/a", "unified"]),
        ("3:memory:/k\n2:cpu:/c\n", ["memory/k", "memory", "memory/k", "memory"]),
        ("3:hugetlb,memory:/k\n", ["memory/k", "memory", "hugetlb,memory/k", "hugetlb,memory"]),
        ("1:name=systemd:/x\n", []),
        ("", []),
    ],
)
def test_they_are_named_from_the_innermost_on(tmp_path: Path, membership: str, folders: list[str]) -> None:
    (tmp_path / "membership").write_text(membership)
    found = cgroup_folders("memory", tmp_path, tmp_path / "membership")
    assert [str(folder.relative_to(tmp_path)) for folder in found] == folders


def test_where_nothing_tells_of_cgroups_there_are_none(tmp_path: Path) -> None:
    assert cgroup_folders("memory", tmp_path, tmp_path / "missing") == []
