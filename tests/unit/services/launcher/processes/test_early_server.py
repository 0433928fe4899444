"""The first fork server, forked off a program that has imported only: it is what one that is started is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.launcher.processes.forker import forking_works
from tests.support.data import REPOSITORY
from tests.support.wait import until

pytestmark = pytest.mark.skipif(not forking_works(), reason="another system")

LAUNCHER = """
import asyncio, json, os, signal, sys, types
from services.launcher.processes.early_server import fork_early
from services.launcher.processes.forker import Forker, NotForked, server_environ

environ = dict(os.environ) | {"SAID": "to services"}
held = os.open("/dev/null", os.O_RDONLY)
os.set_inheritable(held, True)
early = fork_early(["preloaded"], server_environ(environ)) if sys.argv[1] == "early" else None
said = []
writer = types.SimpleNamespace(write=lambda name, line, level="info": said.append(line.decode()))

async def told(forker):
    child = await forker.fork("tells", {**environ, "OWN": "yes"})
    lines = (await child.output.read()).decode().splitlines()
    child.pipe.close()
    return {**json.loads(lines[0]), "rest": lines[1:], "code": await child.process.wait()}

if sys.argv[1] == "killed":
    early = fork_early(["preloaded"], server_environ(environ))
    os.kill(early.pid, signal.SIGKILL)
    os.waitid(os.P_PID, early.pid, os.WEXITED | os.WNOWAIT)

async def main():
    forker = Forker(["preloaded"], environ, writer, early=early)
    life = asyncio.create_task(forker.run())
    seen = [await told(forker)]
    is_early = early is not None and forker.pid == early.pid
    if is_early:
        os.kill(forker.pid, signal.SIGKILL)
        while len(seen) == 1:
            try:
                seen.append(await told(forker))
            except NotForked:
                await asyncio.sleep(0.01)
    forker.close()
    await life
    print(json.dumps({"seen": seen, "early": is_early, "said": said, "ours": os.getpid()}))

asyncio.run(main())
"""
TELLS = """
import json, os, signal, sys, preloaded
print(json.dumps({
    "server": preloaded.SERVER == os.getpid(), "parent": os.getppid(), "leads": os.getpgid(0) == os.getpid(),
    "environ": sorted(os.environ.items()), "argv": sys.argv[1:], "name": __name__,
    "command": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "stdin": os.readlink("/proc/self/fd/0"),
    "held": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:4],
    "unbuffered": [sys.stdout.write_through, sys.stderr.errors],
}))
sys.stderr.write("and this")
sys.exit(7)
"""
WAITS = """
import os, sys
from services.launcher.processes.early_server import fork_early

early = fork_early(["preloaded"], dict(os.environ))
if sys.argv[1] == "ends":
    early.end_if_waiting()
    early.end_if_waiting()
print(early.pid, flush=True)
os._exit(0)
"""


def run(folder: Path, program: str, how: str) -> str:
    (folder / "preloaded.py").write_text("import os\nSERVER = os.getpid()\n")
    (folder / "tells.py").write_text(TELLS)
    ended = subprocess.run(
        [sys.executable, "-c", program, how],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{folder}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr == ""
    return ended.stdout


def test_its_services_are_those_of_one_that_was_started(tmp_path: Path) -> None:
    early: dict[str, Any] = json.loads(run(tmp_path, LAUNCHER, "early"))
    started = json.loads(run(tmp_path, LAUNCHER, "started"))
    assert (early["early"], started["early"]) == (True, False)
    for told in (early, started):
        for each in told["seen"]:
            assert each.pop("parent") == told["ours"]
            assert not each["server"]
            assert (each["code"], each["rest"]) == (7, ["and this"])
    first, again = early["seen"]
    assert [first, again] == 2 * started["seen"]
    assert started["said"] == []
    assert early["said"] == [
        "fork-server was killed by SIGKILL; services start as programs of their own without it"
    ]


def test_another_one_is_started_where_it_was_killed_while_it_waited(tmp_path: Path) -> None:
    killed = json.loads(run(tmp_path, LAUNCHER, "killed"))
    assert not killed["early"]
    assert [each["code"] for each in killed["seen"]] == [7]
    assert killed["said"] == []


def ended(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"  # whoever adopted it has not looked yet


def test_one_that_waits_is_gone_when_it_is_ended(tmp_path: Path) -> None:
    assert ended(int(run(tmp_path, WAITS, "ends")))


async def test_one_that_waits_ends_with_its_launcher(tmp_path: Path) -> None:
    pid = int(run(tmp_path, WAITS, "leaves"))
    await until(lambda: ended(pid), timeout_s=60)
