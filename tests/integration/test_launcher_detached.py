"""`penstock up -d` in real terminals: the stack that it leaves behind, or that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.files.stack_register import launcher_of
from tests.support.data import REPOSITORY
from tests.support.launched import TIMEOUT_S, launcher_environ, running, service_commands, write_driver
from tests.support.terminal import Terminal
from tests.support.wait import until

Open = Callable[..., Terminal]
CHILDREN = "/proc/{0}/task/{0}/children"


@pytest.fixture(autouse=True)
def hangups_count() -> Iterator[None]:
    """Whoever runs the tests may ignore SIGHUP, as `nohup` does, and what is started would too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "state"
    yield folder
    if (pid := launcher_of(folder)) is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def up(tmp_path: Path, state_dir: Path) -> Open:
    """Open a terminal in which `penstock up -d` runs with these commands as its services."""

    def open_one(*argv: str, **commands: list[str]) -> Terminal:
        driver = write_driver(tmp_path, service_commands(tmp_path) | commands)
        options = ("--state-dir", str(state_dir), "--draft", "none", "--grpc-port", "0", "--http-port", "0")
        environ = launcher_environ(tmp_path) | {"NO_COLOR": "1"}
        return Terminal((sys.executable, str(driver), "-d", *options, *argv), columns=200, environ=environ)

    return open_one


def penstock(*argv: str) -> Terminal:
    command = (sys.executable, "-m", "services.cli", *argv)
    return Terminal(command, columns=200, environ={"PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"})


def waiting_service(folder: Path) -> list[str]:
    """One that serves as soon as there is a file `go`."""
    service = f"exec {sys.executable} {folder / 'service.py'} decode"
    return ["/bin/sh", "-c", f"echo waiting; while [ ! -e {folder / 'go'} ]; do sleep 0.05; done; {service}"]


def processes(state_dir: Path) -> list[int]:
    """The launcher and its children."""
    pid = launcher_of(state_dir)
    assert pid is not None
    return [pid, *map(int, Path(CHILDREN.format(pid)).read_text().split())]


def stack(state_dir: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((state_dir / "stack.json").read_text())
    return described


async def test_it_returns_when_the_stack_is_ready_which_stays_when_the_terminal_closes(
    up: Open, state_dir: Path
) -> None:
    with up() as terminal:
        assert terminal.end() == 0
        pids = processes(state_dir)
        lines = terminal.shown.splitlines()
        assert any("decode-0 ready in" in line for line in lines)
        assert lines[-3].startswith(f"ready grpc={stack(state_dir)['grpc']}")
        assert lines[-2] == f"console: http://{stack(state_dir)['http']}/    chat: `penstock chat`"
        where = f"--state-dir {state_dir}`"
        assert lines[-1] == f"logs: `penstock logs -f {where}    stop: `penstock down {where}"
    assert os.getsid(pids[0]) == pids[0]
    assert len(pids) == 4
    with up() as again:
        assert again.end() == 0
        assert f"the stack of {state_dir} runs already (process {pids[0]}); to start it" in again.shown
    assert all(map(running, pids))
    with penstock("logs", "-f", "decode", "--lines", "1", "--state-dir", str(state_dir)) as follower:
        follower.until("decode-0 | ")
        with penstock("down", "--state-dir", str(state_dir)) as down:
            assert down.end() == 0
        follower.until("info    goodbye from decode-0\n")
        assert follower.end() == 0
    await until(lambda: not any(map(running, pids)))


@pytest.mark.thorough
def test_ctrl_c_ends_a_look_at_the_log_and_not_the_stack(up: Open, state_dir: Path) -> None:
    with up() as terminal:
        assert terminal.end() == 0
    with penstock("logs", "-f", "--state-dir", str(state_dir)) as follower:
        follower.until("penstock | ")
        follower.interrupt()
        assert follower.end() == 130
        assert "Traceback" not in follower.shown
    assert launcher_of(state_dir) is not None


def test_a_stack_that_does_not_become_ready_is_said_why_and_nothing_runs(up: Open, state_dir: Path) -> None:
    broken = ["/bin/sh", "-c", "echo waiting; echo penstock decode: no such weights >&2; exit 1"]
    with up(decode=broken) as terminal:
        terminal.until("waiting")
        pids = processes(state_dir)
        assert terminal.end() == 1
        *_, cause, last = terminal.shown.splitlines()
    assert cause == (
        "penstock | decode-0 exited with code 1 in 4 tries and was never ready: penstock decode: no such "
        "weights"
    )
    logs = f"`penstock logs --state-dir {state_dir}`"
    assert last == f"penstock up: the stack is not up, and nothing of it runs; {logs} shows what it said"
    assert not any(map(running, pids))
    with penstock("logs", "--level", "error", "--state-dir", str(state_dir)) as logs_shown:
        assert logs_shown.end() == 0
        assert cause.removeprefix("penstock | ") in logs_shown.shown


@pytest.mark.thorough
def test_ctrl_c_while_it_waits_takes_the_stack_down(up: Open, state_dir: Path, tmp_path: Path) -> None:
    with up(decode=waiting_service(tmp_path)) as terminal:
        terminal.until("decode-0 | waiting")
        pids = processes(state_dir)
        with up() as second:
            assert second.end() == 1
            assert f"is being started or stopped already (process {pids[0]})" in second.shown
        terminal.interrupt()
        assert terminal.end() == 130
        assert terminal.shown.endswith("taken down before it was ready; nothing of it runs\n")
    assert not any(map(running, pids))
    assert launcher_of(state_dir) is None


async def test_a_terminal_that_closes_while_it_waits_leaves_the_stack_to_start(
    up: Open, state_dir: Path, tmp_path: Path
) -> None:
    with up(decode=waiting_service(tmp_path)) as terminal:
        terminal.until("decode-0 | waiting")
        terminal.hang_up()
        assert terminal.end() == -signal.SIGHUP
    (tmp_path / "go").touch()
    await until((state_dir / "stack.json").exists, timeout_s=TIMEOUT_S)
    with penstock("down", "--state-dir", str(state_dir)) as down:
        assert down.end() == 0


def test_whoever_starts_it_from_a_script_waits_for_nothing_of_it(tmp_path: Path, state_dir: Path) -> None:
    """Its output ends, and so does a pipe of the script's own, when the stack is ready."""
    driver = write_driver(tmp_path, service_commands(tmp_path))
    options = ("--state-dir", str(state_dir), "--draft", "none", "--grpc-port", "0", "--http-port", "0")
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    done = subprocess.run(
        [sys.executable, str(driver), "-d", *options],
        env={**os.environ, **launcher_environ(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        close_fds=False,
    )
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        assert pipe.read() == ""  # it ends: nobody else has the other end
    assert done.returncode == 0
    assert done.stdout.startswith("ready grpc=")
    assert launcher_of(state_dir) is not None


@pytest.mark.thorough
def test_a_stack_that_is_refused_before_it_begins_has_no_log_to_point_to(
    up: Open, state_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    with up("--model", str(tmp_path / "model")) as terminal:
        assert terminal.end() == 2
    *_, cause, last = terminal.shown.splitlines()
    assert "cannot be served" in cause
    assert last == "penstock up: the stack is not up, and nothing of it runs"
    assert not state_dir.exists()


@pytest.mark.thorough
def test_a_wrong_option_is_refused_before_anything_begins(up: Open, state_dir: Path) -> None:
    with up("--grpc-port", "70000") as terminal:
        assert terminal.end() == 2
        assert "--grpc-port must be between 0 and 65535" in terminal.shown
    assert not state_dir.exists()
