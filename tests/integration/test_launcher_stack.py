"""The launcher as a process, with a real nats-server and tiny services that send real heartbeats."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shared.bus.credentials import Credentials
from shared.bus.nats_server import NatsServer
from shared.files.rotated_log import LOG_NAME
from shared.files.stack_register import running_stacks
from tests.support.data import REPOSITORY
from tests.support.launched import (
    TIMEOUT_S,
    Up,
    alive,
    environ_of,
    launcher_environ,
    service_commands,
    write_driver,
)
from tests.support.terminal import Terminal
from tests.support.wait import until

Start = Callable[..., Up]
KILLED = r"penstock \| decode-0 was killed by SIGKILL \(.*\); starting it again in 100 ms"
"""In brackets stands whose kill it may be: by the kernel, where another test has had it kill meanwhile."""


@pytest.fixture(autouse=True)
def hangups_count() -> Iterator[None]:
    """Whoever runs the tests may ignore SIGHUP, as `nohup` does, and what is started would too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Up] = []

    def start_one(
        *argv: str,
        folder: str = "one",
        grpc_port: int = 0,
        http_port: int = 0,
        forked: bool = False,
        prefix: tuple[str, ...] = (),
        constants: Mapping[str, float] | None = None,
        **commands: list[str],
    ) -> Up:
        argv = ("--grpc-port", str(grpc_port), "--http-port", str(http_port), *argv)
        chosen = service_commands(tmp_path / folder) | commands
        up = Up(tmp_path / folder, chosen, *argv, prefix=prefix, forked=forked, **(constants or {}))
        started.append(up)
        return up

    yield start_one
    for up in started:
        up.close()


def listens(nats_url: str) -> bool:
    host, _, port = nats_url.removeprefix("nats://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.thorough
async def test_with_json_every_line_of_the_log_is_an_object_and_services_are_told_so(start: Start) -> None:
    up = start("--log-format", "json")
    await up.until_ready()
    assert b"PENSTOCK_LOG_FORMAT=json" in environ_of(up.stack()["instances"][1]["pid"])
    up.process.send_signal(signal.SIGTERM)
    assert up.wait() == 0
    lines = [json.loads(line) for line in up.stderr]
    assert {"penstock", "decode-0"} <= {line["instance"] for line in lines}
    assert any(line["event"].startswith("hello from decode-0") for line in lines)


async def test_ready_is_the_only_line_on_stdout_and_stack_json_describes_the_stack(start: Start) -> None:
    up = start("--decode", "2")
    await up.until_ready()
    stack = up.stack()
    assert up.stdout == [f"ready grpc={stack['grpc']} http={stack['http']} nats={stack['nats']}"]
    names = ["grpc", "http", "nats", "nats_credentials", "instances", "adapter_file", "models"]
    assert list(stack) == [
        *names,
        "share_ports",
        "roll",
        "stand_in",
        "roll_trouble",
        "scale",
        "scale_trouble",
    ]
    rows = [(row["role"], row["id"], row["metrics"]) for row in stack["instances"]]
    assert rows == [
        ("gateway", "gateway-0", "127.0.0.1:9"),
        ("decode", "decode-0", "127.0.0.1:9"),
        ("decode", "decode-1", "127.0.0.1:9"),
    ]
    assert {row["pid"] for row in stack["instances"]} < set(up.pids())
    ports = [int(stack[edge].rpartition(":")[2]) for edge in ("grpc", "http")]
    assert min(ports) > 0
    assert ports[0] != ports[1]
    assert any(line.startswith("decode-1 | hello from decode-1") for line in up.stderr)
    await until(lambda: any("decode-0 ready in" in line for line in up.stderr))


@pytest.mark.thorough(but="15")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_drains_in_order_and_leaves_nothing(start: Start, signum: signal.Signals) -> None:
    up = start()
    await up.until_ready()
    pids = up.pids()
    assert len(pids) == 3
    up.process.send_signal(signum)
    assert up.wait() == 0
    assert alive(pids) == []
    assert not (up.state_dir / "stack.json").exists()
    goodbyes = [line for line in up.stderr if "goodbye" in line]
    assert goodbyes == ["gateway-0 | goodbye from gateway-0", "decode-0 | goodbye from decode-0"]


@pytest.mark.thorough
async def test_a_second_hangup_kills_nothing_that_drains(start: Start) -> None:
    up = start()
    await up.until_ready()
    up.process.send_signal(signal.SIGHUP)
    await until(lambda: any("the terminal has closed: stopping" in line for line in up.stderr))
    up.process.send_signal(signal.SIGHUP)
    assert up.wait() == 0
    assert [line for line in up.stderr if "goodbye" in line or "killing" in line] == [
        "gateway-0 | goodbye from gateway-0",
        "decode-0 | goodbye from decode-0",
    ]


@pytest.mark.thorough
async def test_nohup_keeps_a_stack_whose_terminal_has_closed(start: Start) -> None:
    up = start(prefix=("nohup",))
    await up.until_ready()
    up.process.send_signal(signal.SIGHUP)
    up.process.send_signal(signal.SIGTERM)
    assert up.wait() == 0
    assert not any("the terminal has closed" in line for line in up.stderr)


@pytest.mark.thorough
def test_a_terminal_is_told_in_text_and_leaves_nothing_when_it_closes(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    driver = write_driver(tmp_path, service_commands(tmp_path))
    options = ("--state-dir", str(state_dir), "--draft", "none", "--grpc-port", "0", "--http-port", "0")
    environ = launcher_environ(tmp_path) | {"NO_COLOR": "1"}
    with Terminal((sys.executable, str(driver), *options), environ=environ) as terminal:
        terminal.until("ready grpc=")
        stack = json.loads((state_dir / "stack.json").read_text())
        console = terminal.until("stop: Ctrl-C").splitlines()[-1]
        assert console == f"console: http://{stack['http']}/    chat: `penstock chat`    stop: Ctrl-C"
        pids = [row["pid"] for row in stack["instances"]]
        assert b"PENSTOCK_LOG_FORMAT=json" in environ_of(pids[0])  # for the log; text is made of it here
        assert re.search(r'decode-0 \| [\d:.]{12} info    serving words="two words"\n', terminal.shown)
        assert "\x1b[" not in terminal.shown
        terminal.hang_up()
        assert terminal.end() == 0
    assert alive(pids) == []
    assert not (state_dir / "stack.json").exists()


async def test_a_killed_launcher_takes_everything_with_it_and_the_next_one_starts(start: Start) -> None:
    first = start()
    await first.until_ready()
    pids = first.pids()
    assert len(pids) == 3
    first.process.kill()
    first.wait()
    await until(lambda: not alive(pids))
    second = start()
    await second.until_ready()
    second.process.terminate()
    assert second.wait() == 0


async def test_a_second_signal_kills_what_does_not_end(start: Start) -> None:
    code = (
        "import signal, runpy, sys, asyncio\n"
        "asyncio.base_events.BaseEventLoop.add_signal_handler = lambda *a: None\n"
        "import asyncio.unix_events as u\n"
        "u._UnixSelectorEventLoop.add_signal_handler = lambda *a: None\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "runpy.run_path('service.py')\n"
    )
    up = start(decode=[sys.executable, "-c", code, "decode"])
    await up.until_ready()
    pids = up.pids()
    up.process.terminate()
    await until(lambda: any("goodbye from gateway-0" in line for line in up.stderr), timeout_s=TIMEOUT_S)
    up.process.terminate()
    assert up.wait() == 0
    assert alive(pids) == []
    assert "penstock | killing decode-0" in up.stderr


async def test_a_killed_service_comes_back_and_stack_json_has_its_new_pid(start: Start) -> None:
    up = start()
    await up.until_ready()
    old = up.stack()["instances"][1]["pid"]
    os.kill(old, signal.SIGKILL)
    await until(lambda: up.stack()["instances"][1]["pid"] != old, timeout_s=TIMEOUT_S)
    await until(lambda: sum("decode-0 ready in" in line for line in up.stderr) == 2, timeout_s=TIMEOUT_S)
    assert any(re.fullmatch(KILLED, line) for line in up.stderr)
    assert up.stack()["instances"][0]["pid"] in up.pids()


async def test_a_state_directory_that_is_full_ends_nothing_and_is_true_again_when_there_is_room(
    start: Start,
) -> None:
    up = start()
    await up.until_ready()
    old = up.stack()["instances"][1]["pid"]
    _, most = resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE, (0, most))  # no file of the launcher takes a byte
    os.kill(old, signal.SIGKILL)
    await until(lambda: sum("decode-0 ready in" in line for line in up.stderr) == 2, timeout_s=TIMEOUT_S)
    await until(lambda: told(up, "stack.json cannot be written"), timeout_s=TIMEOUT_S)
    assert up.stack()["instances"][1]["pid"] == old  # whole, if not true
    assert up.process.poll() is None
    resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE, (most, most))
    await until(lambda: up.stack()["instances"][1]["pid"] != old, timeout_s=TIMEOUT_S)
    await until(lambda: told(up, "stack.json is up to date again"), timeout_s=TIMEOUT_S)
    assert told(up, "stack.json cannot be written") == 1
    assert told(up, "stack.log cannot be written (File too large): lines are missing there until it can") == 1
    await until(lambda: b" log lines could not be written" in (up.state_dir / LOG_NAME).read_bytes())
    assert up.stack()["instances"][0]["pid"] in up.pids()  # which has gone on all the time


@pytest.mark.thorough
async def test_a_start_without_room_is_refused_with_a_sentence(start: Start) -> None:
    up = start(prefix=("/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh"))
    assert up.wait() == 2
    assert f"{up.state_dir} cannot be written to: File too large; make room there" in up.stderr[-1]


def told(up: Up, words: str) -> int:
    return sum(words in line for line in up.stderr)


def is_forked(pid: int) -> bool:
    """Its memory began as the server's, with the server's environment."""
    return b"OPENBLAS_NUM_THREADS=1" in environ_of(pid)


def fork_server_of(up: Up) -> int:
    ours = {row["pid"] for row in up.stack()["instances"]}
    (pid,) = [
        pid
        for pid in up.pids()
        if pid not in ours and b"services.launcher.processes.fork_server" in command_of(pid)
    ]
    return pid


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_services_are_forked_at_the_start_and_after_a_crash(start: Start) -> None:
    up = start(forked=True)
    await up.until_ready()
    before = [row["pid"] for row in up.stack()["instances"]]
    assert [is_forked(pid) for pid in before] == [True, True]
    assert all(b"-m\0service\0" in command_of(pid) for pid in before)
    os.kill(before[1], signal.SIGKILL)
    await until(lambda: sum("decode-0 ready in" in line for line in up.stderr) == 2, timeout_s=TIMEOUT_S)
    assert any(re.fullmatch(KILLED, line) for line in up.stderr)
    await until(lambda: up.stack()["instances"][1]["pid"] != before[1], timeout_s=TIMEOUT_S)
    pids = up.pids()
    assert len(pids) == 4  # NATS, the fork server, and two services
    assert is_forked(up.stack()["instances"][1]["pid"])
    up.process.terminate()
    assert up.wait() == 0
    assert alive(pids) == []
    goodbyes = [line for line in up.stderr if "goodbye" in line]
    assert goodbyes == ["gateway-0 | goodbye from gateway-0", "decode-0 | goodbye from decode-0"]


async def test_without_a_fork_server_a_service_is_started_as_a_program(start: Start) -> None:
    up = start(forked=True)
    await up.until_ready()
    server, decode = fork_server_of(up), up.stack()["instances"][1]["pid"]
    os.kill(server, signal.SIGKILL)
    os.kill(decode, signal.SIGKILL)
    await until(lambda: up.stack()["instances"][1]["pid"] != decode, timeout_s=TIMEOUT_S)
    await until(lambda: sum("decode-0 ready in" in line for line in up.stderr) == 2, timeout_s=TIMEOUT_S)
    assert not is_forked(up.stack()["instances"][1]["pid"])
    assert up.stack()["instances"][0]["pid"] in up.pids()  # forked before, and none the worse for it


async def test_a_service_that_is_stopped_for_good_is_killed_and_started_again(
    start: Start, tmp_path: Path
) -> None:
    service = str(tmp_path / "one" / "service.py")
    live = {role: [sys.executable, service, role, "live"] for role in ("gateway", "decode")}
    up = start("--decode", "2", constants={"hung_after_probes": 4, "probe_s": 0.5}, **live)
    await up.until_ready()
    before = up.stack()["instances"]
    os.kill(before[1]["pid"], signal.SIGSTOP)
    rows: list[dict[str, Any]] = []

    def restarted() -> bool:
        rows.append(up.stack()["instances"][1])
        return rows[-1]["pid"] != before[1]["pid"] and bool(rows[-1]["metrics"])

    await until(restarted, timeout_s=TIMEOUT_S)
    await until(lambda: sum("decode-0 ready in" in line for line in up.stderr) == 2, timeout_s=TIMEOUT_S)
    assert "penstock | decode-0 hangs (/live does not answer); killing it" in up.stderr
    assert "penstock | decode-0 was killed by SIGKILL; starting it again in 100 ms" in up.stderr
    assert up.stack()["instances"][2] == before[2]  # its neighbour was well
    for row in rows:  # neither process is ever shown with the address of the other
        assert (row["pid"] == before[1]["pid"]) == (row["metrics"] == before[1]["metrics"])


@pytest.mark.thorough
async def test_a_gateway_that_is_stopped_leaves_the_ports_that_it_shares(start: Start) -> None:
    up = start("--gateway", "2")
    await up.until_ready()
    before = [row["pid"] for row in up.stack()["instances"]]
    os.kill(before[0], signal.SIGSTOP)
    await until(lambda: up.stack()["instances"][0]["pid"] != before[0], timeout_s=TIMEOUT_S)
    sentence = "penstock | gateway-0 hangs (it was stopped, and new connections wait for it); killing it"
    assert sentence in up.stderr
    assert [row["pid"] for row in up.stack()["instances"]][1:] == before[1:]


async def test_a_killed_nats_server_comes_back_at_its_address(start: Start) -> None:
    up = start()
    await up.until_ready()
    ours = {row["pid"] for row in up.stack()["instances"]}
    (nats_pid,) = [pid for pid in up.pids() if pid not in ours]
    os.kill(nats_pid, signal.SIGKILL)
    await until(lambda: listens(up.stack()["nats"]) and nats_pid not in up.pids(), timeout_s=TIMEOUT_S)
    assert len(up.pids()) == 3


async def test_a_service_that_refuses_its_configuration_stops_the_stack(
    start: Start,
) -> None:
    up = start(decode=["/bin/sh", "-c", "echo PENSTOCK_DECODE_X is wrong >&2; exit 2"])
    assert up.wait() == 2
    assert up.stderr[-1] == "penstock | decode-0 refused its configuration: PENSTOCK_DECODE_X is wrong"
    assert up.stdout == []


async def test_a_service_that_is_never_ready_fails_the_start_and_leaves_nothing(start: Start) -> None:
    up = start("--start-timeout", "2", decode=["/bin/sh", "-c", "echo still thinking; exec sleep 600"])
    seen: set[int] = set()

    def ended() -> bool:
        seen.update(up.pids())
        return up.process.poll() is not None

    await until(ended, timeout_s=TIMEOUT_S)
    assert up.wait() == 1
    assert "decode-0 did not become ready within 2 s" in up.stderr[-1].replace("gateway-0, ", "")
    assert "still thinking" in up.stderr[-1]
    assert up.stderr[-1].endswith("--start-timeout 10 gives them longer")
    assert 3 <= len(seen) <= 4, "nats, two services, and what looked at the models before"
    assert alive(list(seen)) == []


async def test_a_second_stack_in_the_same_state_directory_is_refused(start: Start) -> None:
    first = start()
    await first.until_ready()
    second = start()
    assert second.wait() == 1
    assert f"a stack (process {first.process.pid}) already runs" in second.stderr[-1]
    assert first.stack()["instances"][0]["pid"] in first.pids()


@pytest.mark.thorough(but="grpc")
@pytest.mark.parametrize("edge", ["grpc", "http"])
async def test_a_taken_port_is_refused_at_once(start: Start, edge: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = start(**{f"{edge}_port": taken.getsockname()[1]})
        assert up.wait() == 2
    assert f"pass --{edge}-port 0" in up.stderr[-1]


async def test_a_nats_server_of_the_user_is_used_and_left_alone_and_its_password_not_shown(
    start: Start,
) -> None:
    server = NatsServer(extra_config="authorization { user: u, password: hidden-word }")
    await server.start()
    try:
        up = start("--nats-url", f"nats://u:hidden-word@127.0.0.1:{server.port}")
        await up.until_ready()
        assert len(up.pids()) == 2
        up.process.terminate()
        assert up.wait() == 0
        assert listens(server.url)
    finally:
        await server.stop()
    assert f"nats=nats://127.0.0.1:{server.port}" in up.stdout[0]
    assert "hidden-word" not in "".join(up.stdout + up.stderr)


async def test_a_nats_server_that_is_not_there_is_named(start: Start) -> None:
    up = start("--nats-url", "nats://127.0.0.1:1", constants={"first_connect_s": 0.3})
    assert up.wait() == 1
    assert "127.0.0.1:1" in up.stderr[-1]


async def test_many_processes_that_write_at_once_never_tear_a_line(start: Start) -> None:
    line = "x" * 3000
    shout = (
        f"import signal, sys\nfor n in range(200):\n    sys.stdout.write('{line}')\n"
        "    sys.stdout.write(' end\\n')\nsys.stdout.flush()\nsignal.pause()"
    )
    up = start("--decode", "3", decode=[sys.executable, "-c", shout])
    await until(lambda: len([said for said in up.stderr if "xxx" in said]) == 600, timeout_s=TIMEOUT_S)
    up.process.terminate()
    assert up.wait() == 0
    assert {said.partition(" | ")[2] for said in up.stderr if "xxx" in said} == {line + " end"}


@pytest.mark.thorough
async def test_a_launcher_that_its_server_refuses_for_too_long_connects_anew_and_ends_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server has other passwords, and so have its services: all come back when the file has them too."""
    own = tmp_path / "own.toml"
    Credentials("u", "before").write(own)
    monkeypatch.setenv("PENSTOCK_NATS_CREDENTIALS", str(own))
    server = NatsServer(extra_config="authorization { user: u, password: before }")
    await server.start()
    renewed = NatsServer(port=server.port, extra_config="authorization { user: u, password: after }")
    try:
        up = start("--nats-url", server.url, constants={"first_connect_s": 5.0, "refused_for_s": 0.1})
        await up.until_ready()
        old = up.stack()["instances"][1]["pid"]
        await server.kill()
        await renewed.start()
        await until(lambda: told(up, "has done so for 0.1 s"), timeout_s=TIMEOUT_S)
        Credentials("u", "after").write(own)
        await until(lambda: told(up, "the launcher hears the services again"), timeout_s=TIMEOUT_S)
        os.kill(up.stack()["instances"][1]["pid"], signal.SIGKILL)
        await until(lambda: up.stack()["instances"][1]["pid"] != old, timeout_s=TIMEOUT_S)
        assert up.process.poll() is None
    finally:
        await server.stop()
        await renewed.stop()


# ---- from another directory ---------------------------------------------------------------------------


def run_penstock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "services.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


async def test_a_stack_is_stopped_from_whatever_directory(start: Start, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    nothing = run_penstock(elsewhere, "down")
    assert (nothing.returncode, nothing.stderr) == (1, "penstock down: no stack runs from .penstock\n")
    up = start()
    await up.until_ready()
    stopped = run_penstock(elsewhere, "down")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert stopped.stdout.startswith(f"the stack of {up.state_dir} has ended after ")
    assert up.wait() == 0
    assert running_stacks() == ()


async def test_a_killed_stack_is_not_taken_for_a_running_one(start: Start, tmp_path: Path) -> None:
    up = start()
    await up.until_ready()
    assert running_stacks() == (up.state_dir,)
    up.process.kill()
    up.wait()
    assert running_stacks() == ()
    assert run_penstock(tmp_path, "down").returncode == 1
