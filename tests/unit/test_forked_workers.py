"""The workers of `pytest -n` are forked from a process that has imported the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.data import REPOSITORY
from tests.support.forked_workers import names_of_tests

TIMEOUT_S = 60

TWO_WORKERS = """
import execnet, sys
from types import ModuleType
from execnet.gateway_base import get_execmodel
from execnet.gateway_bootstrap import bootstrap
from tests.support.forked_workers import ForkedWorker

sys.modules["imported_before"] = ModuleType("imported_before")
group, workers = execnet.Group(execmodel="main_thread_only"), []
for _ in range(2):
    workers.append(ForkedWorker(get_execmodel("main_thread_only"), workers))
for worker, name in zip(workers, ("first", "second")):
    gateway = bootstrap(worker, execnet.XSpec(f"popen//execmodel=main_thread_only//id={name}"))
    group._register(gateway)
for gateway in list(group):
    channel = gateway.remote_exec("import os, imported_before; channel.send(os.getppid())")
    print(channel.receive())
first, second = group
first.exit()
print(workers[0].wait())
print(second.remote_exec("channel.send('still here')").receive())
workers[1].kill()
print(workers[1].wait())
"""


def test_a_worker_has_what_was_imported_and_ends_alone() -> None:
    command = [sys.executable, "-c", TWO_WORKERS]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said, complaints = process.communicate(timeout=TIMEOUT_S)
    assert said.split("\n") == [str(process.pid), str(process.pid), "0", "still here", "-9", ""], complaints


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["a/test_one.py"], ["tests.a.test_one"]),
        (["a"], ["tests.a.test_one", "tests.a.test_two"]),
        (
            ["test_three.py", "a/test_two.py", "a"],
            ["tests.a.test_one", "tests.a.test_two", "tests.test_three"],
        ),
        (["nowhere"], []),
    ],
)
def test_modules_are_named_by_their_files_and_folders(
    tmp_path: Path, places: list[str], names: list[str]
) -> None:
    for name in ("a/test_one.py", "a/test_two.py", "a/helper.py", "test_three.py"):
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert names_of_tests(tmp_path, [tmp_path / "tests" / place for place in places]) == names
