"""A real nats-server that loses what it is sent, as one that crashes does."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.bus import Bus
from shared.bus.nats_server import NatsServer
from tests.support.wait import until


async def sent(bus: Bus) -> None:
    """Wait until all that was published is with the server, or with one that stands still."""
    await until(lambda: bus._connection.client.pending_data_size == 0)


@asynccontextmanager
async def lost_with(server: NatsServer) -> AsyncIterator[None]:
    """Lose all that is sent to the server in this block; behind it there is a new one."""
    os.kill(server.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222 - at once, all of its threads
    yield
    await server.kill()
    await server.start()
