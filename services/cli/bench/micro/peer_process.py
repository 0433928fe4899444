"""The other side of a hop: a process of its own, which ends when its stdin does."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from services.cli.launcher_process import launcher_command
from shared.errors import Unavailable

GREET_DEADLINE_S = 60.0
"""The longest that a peer may take until it says that it is there."""
END_DEADLINE_S = 5.0
"""The longest that a peer is waited for after its stdin was closed; then it is killed."""


@dataclass(frozen=True, slots=True)
class Peer:
    """`greeting` is the line that it said when it was there."""

    process: asyncio.subprocess.Process
    greeting: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())


@contextlib.asynccontextmanager
async def peer_of(module: str, *arguments: str) -> AsyncIterator[Peer]:
    """Start the module as a program, and give the peer when it is there. Raises Unavailable if not."""
    process = await asyncio.create_subprocess_exec(
        *launcher_command(module),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends that one
    )
    try:
        yield Peer(process, await _greeting(process, module))
    finally:
        await _end(process)


async def _greeting(process: asyncio.subprocess.Process, module: str) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(GREET_DEADLINE_S):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise Unavailable(f"{module} has not started after {GREET_DEADLINE_S:g} s") from error
    if not line:
        raise Unavailable(f"{module} ended before it was there; see above")
    return line.decode().strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_DEADLINE_S):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError) as error:
        process.kill()
        await process.wait()
        if isinstance(error, asyncio.CancelledError):
            raise


def greet(line: object) -> None:
    """Say, as a peer, that it is there."""
    print(line, flush=True)


async def until_stdin_ends(hear: Callable[[str], None]) -> None:
    """Hand each line that a peer is told to `hear`, until whoever started it has closed it or has died."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        while line := await reader.readline():
            hear(line.decode().strip())
    finally:
        transport.close()


def hear_nothing(_line: str) -> None:
    """Leave a line alone: nothing is told to a peer that only answers."""
