"""Programs that tests start are forked where their imports end, and are what they are otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import REPOSITORY
from tests.support.ready_programs import is_plain, is_ready

TIMEOUT_S = 60

STARTS = """
import os, subprocess, sys
from pathlib import Path
from tests.support.ready_programs import start_programs_ready

start_programs_ready()
penstock = [sys.executable, "-m", "services.cli"]
done = subprocess.run([*penstock, "no-such"], capture_output=True, text=True, cwd="/")
print(done.returncode, "there is no command 'no-such'" in done.stderr, done.stdout == "")
read = subprocess.Popen(
    [*penstock, "status", "--nats-url", "nats://127.0.0.1:9"], stderr=subprocess.PIPE, start_new_session=True
)
parent = Path(f"/proc/{read.pid}/stat").read_text().rpartition(")")[2].split()[1]
print(int(parent) == os.getpid(), os.getsid(read.pid) == read.pid)
read.kill()
print(read.wait(), read.stderr.read())
says = [*penstock, "up", "--state-dir", "here", "--model", "no/such/model", "--corpus", "none"]
os.environ["HF_HUB_OFFLINE"] = "1"
became = subprocess.run(says, capture_output=True, text=True, cwd=sys.argv[1])
print(became.returncode, "no/such/model" in became.stderr, became.stdout == "")
"""


def test_a_program_has_its_words_streams_parent_and_end(tmp_path: Path) -> None:
    """`up` becomes the launcher's program, as exec would have it."""
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout.splitlines() == ["2 True True", "True True", "-9 b''", "2 True True"], done.stderr


@pytest.mark.parametrize(
    ("argv", "environ", "ready"),
    [
        (("-m", "services.cli", "status"), {}, True),
        (("-P", "-m", "services.launcher"), {"PENSTOCK_HTTP_PORT": "0"}, True),
        (("-m", "services.cli", "up"), {"PYTHONPATH": str(REPOSITORY)}, True),
        (("-m", "services.cli"), {"OMP_NUM_THREADS": "77"}, False),
        (("-m", "services.cli", "pull"), {"HF_ENDPOINT": "http://localhost:9"}, True),
        (("-m", "services.cli", "pull"), {"TRANSFORMERS_OFFLINE": "1"}, False),
        (("-X", "importtime", "-m", "services.cli"), {}, False),
        (("/tmp/launcher_driver.py", "--state-dir", "/tmp"), {}, True),
        (("/tmp/driver.py",), {}, False),
        (("-m", "services.clinic"), {}, False),
        (("-m", "services.tokenizer"), {}, True),
        (("-m", "shared.engine.tensor_parallel.worker", "{}"), {}, True),
        (("/tmp/penstock_runner.py", "--threads", "1"), {}, True),
        (("-m", "pip"), {}, False),
        (("-c", "pass"), {}, False),
        ((), {}, False),
    ],
)
def test_what_counts_at_its_imports_is_started_as_it_is(
    argv: tuple[str, ...], environ: dict[str, str], ready: bool
) -> None:
    assert is_ready([sys.executable, *argv], {**os.environ, **environ}) == ready
    assert not is_ready(["/bin/sh", *argv], {**os.environ, **environ})


def test_other_code_is_never_a_fork_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert not is_ready([sys.executable, "-m", "services.cli"], environ)


def test_a_child_with_more_than_streams_is_started_as_it_is() -> None:
    plain: list[Any] = [
        [],
        (),
        True,
        (9,),
        None,
        None,
        *[-1] * 7,
        9,
        True,
        False,
        -1,
        None,
        None,
        None,
        -1,
        None,
        False,
    ]
    assert is_plain(*plain)
    for place, given in ((2, False), (3, (7, 9)), (17, 1), (20, 0o77), (21, print)):
        assert not is_plain(*plain[:place], given, *plain[place + 1 :])
