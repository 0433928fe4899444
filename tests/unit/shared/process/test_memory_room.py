"""How much memory is left, by what a machine and its cgroups say in their files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.process.memory_room import memory_kills, memory_room
from tests.support.cgroup import MIB, limited_cgroup
from tests.support.data import REPOSITORY


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text("MemTotal:   9000 kB\nMemAvailable:   1000 kB\nSwapFree:   200 kB\n")
    (tmp_path / "membership").write_text("0::/a/b\n3:memory:/k\n2:cpu:/c\n")
    return tmp_path


def left(machine: Path) -> tuple[int, str]:
    room = memory_room(machine / "meminfo", machine, machine / "membership", machine / "status")
    assert room is not None
    return room.available_bytes, room.where.removeprefix("within the limit of the cgroup ")


def test_without_a_limit_it_is_what_the_machine_has_and_its_swap(machine: Path) -> None:
    put(machine / "a" / "b", memory__max="max\n", memory__current="5\n")
    assert left(machine) == (1200 * 1024, "on this machine")


def test_what_this_process_has_itself_is_there_for_it(machine: Path) -> None:
    (machine / "status").write_text("Name:\tpython\nRssAnon:\t     50 kB\n")
    assert left(machine) == (1250 * 1024, "on this machine")


def test_a_limit_leaves_what_is_not_used_and_what_are_pages_of_files(machine: Path) -> None:
    stat = "anon 1\ninactive_file 30000\nactive_file 4000\nshmem 99\n"
    group = machine / "a" / "b"
    put(group, memory__max="100000\n", memory__current="60000\n", memory__stat=stat)
    put(group, memory__swap__max="0\n")
    assert left(machine) == (74000, str(group))


@pytest.mark.parametrize(
    ("files", "swap"),
    [
        ({"memory__swap__max": "0"}, 0),
        ({"memory__swap__max": "5000", "memory__swap__current": "2000"}, 3000),
        ({"memory__swap__max": "5000", "memory__swap__current": "6000"}, 0),
        ({"memory__swap__max": "max"}, 200 * 1024),
        ({}, 200 * 1024),
    ],
)
def test_swap_counts_as_far_as_the_group_may_have_it(machine: Path, files: dict[str, str], swap: int) -> None:
    put(machine / "a", memory__max="1000", memory__current="0", **files)
    assert left(machine) == (1000 + swap, str(machine / "a"))


def test_the_group_with_the_least_left_counts_of_those_above_too(machine: Path) -> None:
    for folder, limit in ((machine / "a" / "b", "700"), (machine / "a", "500"), (machine, "900")):
        put(folder, memory__max=limit, memory__current="100", memory__swap__max="0")
    assert left(machine) == (400, str(machine / "a"))


def test_a_group_that_has_more_than_its_limit_has_nothing_left(machine: Path) -> None:
    put(machine / "a", memory__max="100", memory__current="300", memory__swap__max="0")
    assert left(machine)[0] == 0


def test_the_first_version_has_other_names(machine: Path) -> None:
    group = machine / "memory" / "k"
    put(group, memory__limit_in_bytes="100000", memory__usage_in_bytes="60000")
    put(group, memory__stat="inactive_file 1\ntotal_inactive_file 20000\ntotal_active_file 1000\n")
    assert left(machine) == (61000 + 200 * 1024, str(group))
    put(group, memory__limit_in_bytes=str((1 << 63) - 4096))
    assert left(machine)[1] == "on this machine"


def test_where_nothing_is_said_nothing_is_known(tmp_path: Path) -> None:
    assert memory_room(tmp_path / "meminfo", tmp_path, tmp_path / "membership") is None
    assert memory_kills(tmp_path / "vmstat") is None


def test_kills_of_the_kernel_are_counted(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 3\n")
    assert memory_kills(tmp_path / "vmstat") == 3


def test_this_machine_says_what_it_has() -> None:
    room = memory_room()
    assert room is not None
    assert room.available_bytes > 0


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with limited_cgroup(350) as folder:
        yield folder


def run_within(cgroup: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run it in the cgroup from its first moment."""
    enter = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"'
    return subprocess.run(
        ["/bin/sh", "-c", enter, "sh", *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_a_real_cgroup_is_seen_by_those_in_it(cgroup: Path) -> None:
    code = "from shared.process.memory_room import *; r = memory_room(); print(r.available_bytes, r.where)"
    size, _, where = run_within(cgroup, sys.executable, "-c", code).stdout.strip().partition(" ")
    assert where == f"within the limit of the cgroup {cgroup}"
    assert 200 * MIB < int(size) < 350 * MIB + 100 * MIB


def test_a_stack_that_has_no_room_in_a_real_cgroup_is_refused_with_what_to_lower(
    cgroup: Path, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "services.cli", "up", "--state-dir", str(tmp_path / "state"))
    done = run_within(cgroup, *command, "--grpc-port", "0", "--http-port", "0")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("penstock | the stack needs ")
    assert f"are there within the limit of the cgroup {cgroup}: " in last
    assert last.endswith("--retriever 0 saves 40 MB")
    assert not (tmp_path / "state").exists()  # nothing was begun
