"""The cost of a server's processes is that of all that descend from them, while they are watched."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.cli.bench.run.server_watch import ServerWatch, descendants, process_cpu_s

WORKER = """
import sys, time
kept = bytearray(64 << 20)
kept[::4096] = b"x" * len(kept[::4096])
print("ready", flush=True)
for line in sys.stdin:
    end_s = time.process_time() + float(line)
    while time.process_time() < end_s:
        pass
    print("done", flush=True)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}])"


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A process whose child has 64 MiB, and works as long as it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


async def work(server: subprocess.Popen[str], seconds: float) -> None:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{seconds}\n")
    server.stdin.flush()
    assert await asyncio.to_thread(server.stdout.readline) == "done\n"


async def test_what_children_spend_while_they_are_watched_is_the_server_s(
    server: subprocess.Popen[str],
) -> None:
    await work(server, 0.3)
    watch = ServerWatch([server.pid])
    async with watch.watching():
        await work(server, 0.1)
    use = watch.use()
    assert 0.1 <= use.cpu_s < 0.25
    assert use.processes == 2
    assert 64 << 20 <= use.peak_bytes < 256 << 20
    assert len(descendants([server.pid])) == 2


async def test_a_process_that_has_ended_costs_nothing() -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    watch = ServerWatch([ended.pid])
    async with watch.watching():
        pass
    assert (watch.use().cpu_s, watch.use().peak_bytes, watch.use().processes) == (0, 0, 0)
    with pytest.raises(OSError, match="argument"):
        process_cpu_s(ended.pid)


def test_this_process_has_spent_time() -> None:
    assert process_cpu_s(os.getpid()) > 0
