"""The embedded nats-server, as an instance like the others: it is restarted on the same port."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping

from services.launcher.instance import Instance, InstanceSpec, StartFailed
from services.launcher.ports import free_ports
from shared.bus.nats_server import GOGC, nats_server_binary

HOST = "127.0.0.1"
NAME = "nats"
START_TIMEOUT_S = 15.0
POLL_S = 0.02


def nats_spec(environ: Mapping[str, str] = os.environ) -> tuple[InstanceSpec, str]:
    """A nats-server on a free port of this machine, and its URL. Raises Unavailable without a binary."""
    port = free_ports(HOST, 1)[0]
    # Fewer collections: KV chunks are garbage as soon as they were passed on.
    settings = {"GOGC": GOGC, **environ}
    command = (str(nats_server_binary()), "--addr", HOST, "--port", str(port), "--name", "penstock")
    return InstanceSpec(NAME, NAME, command, settings, hide=b"[INF]", reports=False), f"nats://{HOST}:{port}"


async def wait_until_up(server: Instance, url: str) -> None:
    """Raises StartFailed when the server does not listen in time."""
    host, _, port = url.removeprefix("nats://").rpartition(":")
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_s:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(POLL_S)
            continue
        writer.close()
        return
    raise StartFailed(f"nats-server did not start within {START_TIMEOUT_S:.0f} s: {server.last_words}")
