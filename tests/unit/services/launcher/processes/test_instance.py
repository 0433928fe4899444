"""One instance with real, tiny child processes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path

import pytest

from services.launcher.network import ports
from services.launcher.network.ports import check_free, free_ports
from services.launcher.processes import instance as instance_module
from services.launcher.processes.backoff import Backoff
from services.launcher.processes.instance import (
    MAX_EARLY_EXITS,
    ConfigurationRefused,
    Instance,
    InstanceSpec,
    StartFailed,
)
from services.launcher.processes.log_lines import LineWriter
from shared.errors import InvalidRequest
from tests.support.cgroup import limited_cgroup
from tests.support.wait import until

OUT_OF_MEMORY = "most likely by the kernel, for want of memory: give it more, or lower its kv_memory_mb"


class Log:
    """What the writer wrote, readable after `close`."""

    def __init__(self) -> None:
        self.stream = io.BytesIO()
        self.writer = LineWriter(self.stream)

    def text(self) -> str:
        self.writer.close()
        return self.stream.getvalue().decode()


def instance(script: str, log: Log, *, hide: tuple[bytes, ...] = ()) -> Instance:
    spec = InstanceSpec("decode", "decode-0", ("/bin/sh", "-c", script), {"PATH": os.environ["PATH"]}, hide)
    return Instance(spec, log.writer, make_backoff=lambda: Backoff(first_s=0.001, max_s=0.002))


async def within(awaitable: Awaitable[None]) -> None:
    async with asyncio.timeout(60):
        await awaitable


async def test_what_a_child_says_comes_out_with_its_name_and_stderr_too() -> None:
    log = Log()
    child = instance("echo out; echo err >&2; printf unfinished; exit 2", log)
    with pytest.raises(ConfigurationRefused, match="decode-0 refused its configuration: unfinished"):
        await within(child.run())
    assert log.text() == "decode-0 | out\ndecode-0 | err\ndecode-0 | unfinished\n"


async def test_a_fault_while_its_output_is_read_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(line: bytes) -> None:
        raise OSError(f"nowhere to write {line!r}")

    child = instance("echo out", Log())
    monkeypatch.setattr(child, "_on_line", broken)
    with pytest.raises(OSError, match="nowhere to write b'out'"):
        await within(child.run())


async def test_exit_2_is_not_restarted(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationRefused):
        await within(instance(f"echo x >> {tmp_path}/runs; exit 2", Log()).run())
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_child_that_never_gets_ready_fails_the_start_with_its_last_words(tmp_path: Path) -> None:
    log = Log()
    child = instance(f"echo x >> {tmp_path}/runs; echo cannot load the model >&2; exit 1", log)
    with pytest.raises(StartFailed, match=r"exited with code 1.*cannot load the model"):
        await within(child.run())
    assert (tmp_path / "runs").read_text() == "x\n" * MAX_EARLY_EXITS
    assert "decode-0 exited with code 1; starting it again in 1 ms" in log.text()


@pytest.mark.parametrize(
    ("kills", "said"),
    [
        ((3, 3), "was killed by SIGKILL (not by the launcher); starting it again"),
        ((3, 4), f"was killed by SIGKILL ({OUT_OF_MEMORY}); starting it again"),
        ((None, None), f"was killed by SIGKILL ({OUT_OF_MEMORY}); starting it again"),
    ],
)
async def test_a_kill_that_is_not_ours_is_said_to_be_the_kernel_s_where_it_may_be(
    monkeypatch: pytest.MonkeyPatch, kills: tuple[int | None, int | None], said: str
) -> None:
    """The kernel counts its own: before the process began and when it has ended."""
    told = iter(kills)
    monkeypatch.setattr(instance_module, "memory_kills", lambda: next(told, kills[1]))
    log = Log()
    child = instance("kill -9 $$", log)
    with pytest.raises(StartFailed, match=r"was killed by SIGKILL .* in 4 tries and was never ready"):
        await within(child.run())
    assert log.text().splitlines()[0].startswith(f"penstock | decode-0 {said}")


async def test_a_child_that_a_real_kernel_kills_for_want_of_memory_is_said_to_be() -> None:
    log = Log()
    with limited_cgroup(30) as cgroup:
        enter = f"echo $$ > {cgroup}/cgroup.procs"
        child = instance(f"{enter}; exec {sys.executable} -c 'bytearray(400 << 20)'", log)
        with pytest.raises(
            StartFailed, match=re.escape(f"was killed by SIGKILL ({OUT_OF_MEMORY}) in 4 tries")
        ):
            await within(child.run())


async def test_the_last_words_of_a_child_that_logs_objects_are_text() -> None:
    said = {"event": "loading", "layer": 3, "role": "decode", "instance": "decode-0", "level": "info"}
    line = json.dumps(said | {"ts": "2026-01-01T12:30:01.1234Z"})
    child = instance(f"echo '{line}'; exit 1", Log())
    with pytest.raises(StartFailed, match=r"was never ready: 12:30:01.123 info    loading layer=3$"):
        await within(child.run())


async def test_a_kill_of_ours_is_no_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "memory_kills", lambda: None)
    log = Log()
    child = instance("echo here; exec sleep 600", log)
    child.ready_pid = 1
    task = asyncio.create_task(child.run())
    await until(lambda: "here" in child.last_lines)
    child.kill_hung("/live does not answer")
    await until(lambda: child.restarts)
    child.terminate()
    await within(task)
    assert "decode-0 was killed by SIGKILL; starting it again" in log.text()


async def test_a_child_that_was_ready_once_is_restarted_for_as_long_as_it_takes() -> None:
    log = Log()
    child = instance("kill -9 $$", log)
    child.ready_pid = 1
    task = asyncio.create_task(child.run())
    await until(lambda: child.restarts > MAX_EARLY_EXITS + 2)
    child.terminate()
    await within(task)
    assert re.search(r"was killed by SIGKILL \(.*\); starting it again in 2 ms", log.text())


async def test_a_child_that_crashes_when_it_has_loaded_waits_longer_each_time() -> None:
    log = Log()
    spec = InstanceSpec("decode", "decode-0", ("/bin/sh", "-c", "sleep 0.05; exit 1"), dict(os.environ))
    child = Instance(spec, log.writer, make_backoff=lambda: Backoff(first_s=0.001, reset_after_s=0.01))
    with pytest.raises(StartFailed):
        await within(child.run())
    waits = [line.split()[-2] for line in log.text().splitlines() if "starting it again" in line]
    assert waits == ["1", "2", "4"]


async def test_a_child_that_served_for_long_is_started_again_at_once(tmp_path: Path) -> None:
    log, end = Log(), tmp_path / "end"
    script = f"until rm {end} 2>/dev/null; do sleep 0.01; done; exit 1"
    spec = InstanceSpec("decode", "decode-0", ("/bin/sh", "-c", script), dict(os.environ))
    child = Instance(spec, log.writer, make_backoff=lambda: Backoff(first_s=0.001, reset_after_s=1e-6))
    task = asyncio.create_task(child.run())
    while child.restarts < 3:
        await until(lambda: child.ready_pid != child.pid)
        child.mark_ready()
        end.touch()
        await until(lambda: not end.exists() and child.ready_pid != child.pid)
    child.terminate()
    await within(task)
    waits = [line.split()[-2] for line in log.text().splitlines() if "starting it again" in line]
    assert waits[:3] == ["1", "1", "1"]


async def test_terminate_ends_the_child_and_it_stays_ended() -> None:
    child = instance("exec sleep 600", Log())
    task = asyncio.create_task(child.run())
    await until(lambda: child.pid)
    child.terminate()
    await within(task)
    assert child.process is not None
    assert child.process.returncode == -15
    assert child.restarts == 0


async def test_terminate_before_the_child_exists_still_ends_it() -> None:
    child = instance("exec sleep 600", Log())
    task = asyncio.create_task(child.run())
    await asyncio.sleep(0)
    child.terminate()
    await within(task)


async def test_a_grandchild_with_the_pipe_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.launcher.processes.instance.LAST_OUTPUT_TIMEOUT_S", 0.05)
    script = "import os, time\nif os.fork() == 0:\n    time.sleep(20)\n    os._exit(0)\nos._exit(2)"
    spec = InstanceSpec("decode", "decode-0", (sys.executable, "-c", script), dict(os.environ))
    child = Instance(spec, Log().writer)
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationRefused):
            await child.run()
    assert child.process is not None
    os.killpg(child.process.pid, 9)


async def test_a_command_that_does_not_exist_fails_the_start() -> None:
    spec = InstanceSpec("decode", "decode-0", ("/nowhere/at/all",), {})
    with pytest.raises(StartFailed, match="decode-0 could not be started"):
        await within(Instance(spec, Log().writer).run())


@pytest.mark.parametrize("trouble", ["refuses its configuration", "cannot be started"])
async def test_one_that_was_ready_once_is_started_again_whatever_becomes_of_it(
    tmp_path: Path, trouble: str
) -> None:
    """A stack that serves goes on without it meanwhile."""
    log = Log()
    script = tmp_path / "serve"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o700)
    spec = InstanceSpec("decode", "decode-0", (str(script),), {"PATH": os.environ["PATH"]})
    child = Instance(spec, log.writer, make_backoff=lambda: Backoff(first_s=0.001, max_s=0.002))
    task = asyncio.create_task(child.run())
    await until(lambda: child.pid)
    child.mark_ready()
    if trouble == "cannot be started":
        script.unlink()
    else:
        script.write_text("#!/bin/sh\nexit 2\n")
    assert child.process is not None
    child.process.send_signal(9)
    await until(lambda: child.restarts >= 3)
    script.write_text("#!/bin/sh\necho serves again\nexec sleep 600\n")
    script.chmod(0o700)
    await until(lambda: "serves again" in child.last_lines)
    child.terminate()
    await within(task)
    assert ("could not be started" if trouble == "cannot be started" else "exited with code 2") in log.text()


async def test_hidden_lines_are_not_shown_but_count_as_last_words() -> None:
    log = Log()
    with pytest.raises(ConfigurationRefused, match="quiet"):
        await within(instance("echo loud; echo '[INF] quiet'; exit 2", log, hide=(b"[INF]",)).run())
    assert log.text() == "decode-0 | loud\n"


@pytest.mark.parametrize("first_outgoing", ["21000", "1024", "nonsense"])
def test_free_ports_are_none_that_an_outgoing_connection_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_outgoing: str
) -> None:
    told = tmp_path / "range"
    told.write_text(f"{first_outgoing}\t60999\n")
    monkeypatch.setattr(ports, "OUTGOING", told)
    found = free_ports("127.0.0.1", 5)
    below = {"21000": range(20_000, 21_000), "nonsense": range(20_000, 32_768)}
    assert len(set(found)) == 5
    assert set(found) <= set(below.get(first_outgoing, range(1, 65_536)))


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports("127.0.0.1", 5)
    assert len(set(ports)) == 5
    for port in ports:
        check_free("127.0.0.1", port, "--http-port")


def test_a_taken_port_is_refused_with_a_way_out() -> None:

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match="--http-port 0"):
            check_free("127.0.0.1", port, "--http-port")
