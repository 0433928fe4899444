"""Services forked from a real server, which has imported a module of the test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from services.launcher.processes import forker as forker_module
from services.launcher.processes.child import KILLED_BECAUSE_ORPHANED, Child
from services.launcher.processes.fork_server import MAX_REQUEST_BYTES, READY
from services.launcher.processes.forker import NAME, Forker, NotForked, adopting
from services.launcher.processes.log_lines import LineWriter
from tests.support.wait import until

REPOSITORY = Path(__file__).resolve().parents[4]
TIMEOUT_S = 60

PRELOADED = "import os\nSERVER = os.getpid()\n"
TELLS = """
import json, os, signal, sys, preloaded
print(json.dumps({
    "server": preloaded.SERVER, "parent": os.getppid(), "group": os.getpgid(0), "pid": os.getpid(),
    "environ": dict(os.environ), "argv": sys.argv[1:], "name": __name__,
    "command": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "stdin": os.readlink("/proc/self/fd/0"),
    "held": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:4],
}), flush=True)
print("and this", file=sys.stderr, flush=True)
sys.exit(7)
"""
WAITS = "import signal\nprint('waiting', flush=True)\nsignal.pause()\n"
MODULES = {
    "preloaded": PRELOADED,
    "tells": TELLS,
    "waits": WAITS,
    "threaded": "import threading as t, time\nt.Thread(target=time.sleep, args=(9,), daemon=True).start()\n",
    "broken": "raise RuntimeError('broken module')\n",
    "slow": "import time\nprint('importing', flush=True)\ntime.sleep(600)\n",
}


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, name: str, line: bytes) -> None:
        self.lines.append(f"{name} | {line.decode().rstrip()}")

    def text(self) -> str:
        return "\n".join(self.lines)


class LogWriter(LineWriter):
    """Keeps lines for the test."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self, name: str, line: bytes, level: str = "info") -> None:
        del level
        self._log.write(name, line)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    path = os.pathsep.join((str(REPOSITORY), str(tmp_path)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


@asynccontextmanager
async def running(environ: dict[str, str], log: Log, preload: str = "preloaded") -> AsyncIterator[Forker]:
    forker = Forker([preload], environ, LogWriter(log))
    life = asyncio.create_task(forker.run())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield forker
    finally:
        forker.close()
        await life


async def said_by(child: Child) -> tuple[bytes, int]:
    try:
        return await child.output.read(), await child.process.wait()
    finally:
        child.pipe.close()


async def test_a_forked_service_is_what_its_program_would_have_been(environ: dict[str, str]) -> None:
    told = {"PATH": "/somewhere", "PENSTOCK_INSTANCE": "decode-0", "ODD": "a=b \udce9"}
    async with running(environ, Log()) as forker:
        child = await forker.fork("tells", told)
        output, code = await said_by(child)
        server = forker.pid
    first, _, rest = output.partition(b"\n")
    said: dict[str, Any] = json.loads(first)
    assert code == 7
    assert rest == b"and this\n"
    assert said == {
        "server": server,
        "parent": os.getpid(),
        "group": child.process.pid,
        "pid": child.process.pid,
        "environ": told,
        "argv": [],
        "name": "__main__",
        "command": [sys.executable, "-P", "-m", "tells"],
        "stdin": "/dev/null",
        "held": 0,
        "interrupt": True,
        "fds": [0, 1, 2, 3],  # the last one lists them
    }


async def test_a_signal_ends_a_forked_service_and_its_end_is_told(environ: dict[str, str]) -> None:
    async with running(environ, Log()) as forker:
        child = await forker.fork("waits", environ)
        assert await child.output.readline() == b"waiting\n"
        child.process.send_signal(signal.SIGTERM)
        assert await said_by(child) == (b"", -signal.SIGTERM)


async def test_a_server_that_ends_takes_no_service_with_it_and_comes_back(environ: dict[str, str]) -> None:
    log = Log()
    async with running(environ, log) as forker:
        child = await forker.fork("waits", environ)
        assert await child.output.readline() == b"waiting\n"
        first = forker.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: NAME in log.text())
        with pytest.raises(NotForked):
            await forker.fork("waits", environ)
        assert child.process.returncode is None
        again = await forked_when_back(forker, environ)
        assert forker.pid != first
        for each in (child, again):
            each.process.send_signal(signal.SIGKILL)
            assert (await said_by(each))[1] == -signal.SIGKILL
    assert f"{NAME} was killed by SIGKILL; services start as programs of their own" in log.text()


async def test_a_server_that_is_renewed_forks_what_the_code_is_by_then(
    environ: dict[str, str], tmp_path: Path
) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "preloaded.py").write_text("")
    (newer / "waits.py").write_text("print('newer', flush=True)\n")
    path = os.pathsep.join((str(REPOSITORY), str(newer)))
    async with running(environ, Log()) as forker:
        await said_by(await forker.fork("tells", environ))
        forker.renew(sys.executable, {**environ, "PYTHONPATH": path})
        with pytest.raises(NotForked):
            await forker.fork("waits", environ)
        output, _ = await said_by(await forked_when_back(forker, environ))
    assert output == b"newer\n"


async def test_a_server_that_has_just_ended_cannot_fork_and_that_is_all(environ: dict[str, str]) -> None:
    """Whatever killed it may have killed services too, which are started again before we hear of it."""
    async with running(environ, Log()) as forker:
        child = await forker.fork("waits", environ)
        os.kill(forker.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # a thread of asyncio's has reaped it; the loop has not heard of it
            os.waitid(os.P_PID, forker.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - nor is it to
        with pytest.raises(NotForked):
            await forker.fork("waits", environ)
        child.process.send_signal(signal.SIGKILL)
        await said_by(child)


async def test_a_server_that_ends_over_a_request_cannot_fork_and_that_is_all(environ: dict[str, str]) -> None:
    async with running(environ, Log()) as forker:
        first = await forker.fork("waits", environ)
        os.kill(forker.pid, signal.SIGSTOP)
        asked = asyncio.create_task(forker.fork("waits", environ))
        await until(forker._turn.locked)
        os.kill(forker.pid, signal.SIGKILL)
        with pytest.raises(NotForked):
            await asked
        first.process.send_signal(signal.SIGKILL)
        await said_by(first)


def test_a_service_whose_launcher_gave_it_up_before_it_knew_of_it_never_begins(
    environ: dict[str, str],
) -> None:
    """It would be a second one of its name, which nobody ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(TIMEOUT_S)
    command = [sys.executable, "-P", "-m", "services.launcher.processes.fork_server", "preloaded"]
    with ours, theirs, subprocess.Popen(command, env=environ, stdin=theirs.fileno()) as server:
        assert ours.recv(64) == READY
        said, says = os.pipe()
        go, leave = os.pipe()
        request = json.dumps({"module": "waits", "environ": environ}).encode()
        with adopting():
            socket.send_fds(ours, [request], [says, go])
            pid = int(ours.recv(64))
        for fd in (says, go, leave):
            os.close(fd)
        assert os.read(said, 64) == b""
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == KILLED_BECAUSE_ORPHANED
        os.close(said)
        server.kill()


async def forked_when_back(forker: Forker, environ: dict[str, str]) -> Child:
    while True:
        try:
            return await forker.fork("waits", environ)
        except NotForked:
            await asyncio.sleep(0.01)


async def test_many_are_forked_at_once_each_with_an_output_of_its_own(environ: dict[str, str]) -> None:
    async with running(environ, Log()) as forker:
        children = await asyncio.gather(*(forker.fork("tells", {"ME": str(n)}) for n in range(5)))
        said = [json.loads((await said_by(child))[0].splitlines()[0]) for child in children]
    assert [each["environ"] for each in said] == [{"ME": str(n)} for n in range(5)]
    assert [each["pid"] for each in said] == [child.process.pid for child in children]


@pytest.mark.parametrize(
    ("preload", "why"),
    [
        ("threaded", "the imports of threaded have started 1 threads"),
        ("broken", "broken module"),
        ("nowhere", "No module named 'nowhere'"),
    ],
)
async def test_a_server_that_cannot_fork_says_why_and_is_not_started_again(
    environ: dict[str, str], preload: str, why: str
) -> None:
    log = Log()
    async with running(environ, log, preload) as forker:
        with pytest.raises(NotForked):
            await forker.fork("tells", environ)
        await until(lambda: f"{NAME} exited with code 1" in log.text())
        pid = forker.pid
        with pytest.raises(NotForked):
            await forker.fork("tells", environ)
        assert forker.pid == pid
    assert why in log.text()


async def test_a_server_that_is_not_ready_in_time_is_not_said_to_have_been_killed(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forker_module, "LOAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(forker_module, "END_TIMEOUT_S", 0.5)
    log = Log()
    async with running(environ, log, "slow") as forker:
        with pytest.raises(NotForked):
            await forker.fork("tells", environ)
        await until(lambda: f"{NAME} was not ready after 1 s; services start as programs" in log.text())


async def test_a_close_while_the_server_imports_keeps_nobody_waiting(environ: dict[str, str]) -> None:
    log = Log()
    async with running(environ, log, "slow") as forker:
        waiting = asyncio.create_task(forker.fork("tells", environ))
        await until(lambda: "importing" in log.text())
        assert not waiting.done()
        forker.close()
        with pytest.raises(NotForked):
            await waiting


@pytest.mark.parametrize(("over", "is_forked"), [(0, True), (1, False)])
async def test_an_environment_that_is_no_packet_is_not_sent(
    environ: dict[str, str], over: int, is_forked: bool
) -> None:
    around = len(json.dumps({"module": "waits", "environ": {"A": ""}}).encode())
    large = {"A": "x" * (MAX_REQUEST_BYTES - around + over)}
    async with running(environ, Log()) as forker:
        if not is_forked:
            with pytest.raises(NotForked):
                await forker.fork("waits", large)
        child = await forker.fork("waits", large if is_forked else {})
        child.process.send_signal(signal.SIGKILL)
        assert (await said_by(child))[1] == -signal.SIGKILL


LAUNCHER = """
import asyncio, io, os, sys
from services.launcher.processes.forker import Forker
from services.launcher.processes.log_lines import LineWriter

async def main():
    forker = Forker(["preloaded"], dict(os.environ), LineWriter(io.BytesIO()))
    asyncio.get_running_loop().create_task(forker.run())
    child = await forker.fork("waits", dict(os.environ))
    await child.output.readline()
    print(forker.pid, child.process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_launcher_takes_the_server_and_what_it_forked_with_it(environ: dict[str, str]) -> None:
    launcher = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LAUNCHER, env=environ, stdout=subprocess.PIPE
    )
    assert launcher.stdout
    async with asyncio.timeout(TIMEOUT_S):
        pids = [int(pid) for pid in (await launcher.stdout.readline()).split()]
        assert len(pids) == 2
        assert all(runs(pid) for pid in pids)
        launcher.kill()
        await launcher.wait()
    await until(lambda: not any(runs(pid) for pid in pids), timeout_s=TIMEOUT_S)


def runs(pid: int) -> bool:
    """A zombie does not: whoever adopted it has only not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
