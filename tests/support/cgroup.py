"""A real cgroup with a limit of memory, where one can be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20
PLACES = (
    (Path("/sys/fs/cgroup"), "memory.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
)


@contextmanager
def limited_cgroup(limit_mib: int) -> Iterator[Path]:
    """Yield its folder; the test is skipped where we may make none."""
    for root, limit in PLACES:
        folder = root / f"penstock-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if not (folder / limit).exists():  # no cgroup, or one without a controller of memory
                continue
            (folder / limit).write_text(str(limit_mib * MIB))
            yield folder
            return
        finally:
            folder.rmdir()
    pytest.skip("no cgroup with a limit of memory can be made here")
