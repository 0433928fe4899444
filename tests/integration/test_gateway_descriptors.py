"""A gateway that may hold few files open: strangers at its doors never use up the last of them."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.launcher.processes.child import Child, spawn
from tests.integration.gateway_peers import GATEWAY, fleet
from tests.integration.test_gateway_process import event, last_words, page
from tests.support.wait import until

LIMIT = 260
STRANGERS = 300
LINES_PER_S = 20
"""More than both doors say in a second in which they cannot accept."""
MOST_LINES = 60
"""More than a gateway logs that starts, serves and drains; one that cannot accept logs thousands."""


@asynccontextmanager
async def limited(nats_url: str, limits: str) -> AsyncIterator[Child]:
    """A gateway under `ulimit` with these options."""
    command = ("sh", "-c", f'ulimit {limits} && exec "$0" -m services.gateway', sys.executable)
    own = {"PENSTOCK_NATS_URL": nats_url, "PENSTOCK_INSTANCE": GATEWAY, "PENSTOCK_GATEWAY_HTTP_PORT": "0"}
    child = await spawn(command, {**os.environ, **own})
    try:
        yield child
    finally:
        if child.process.returncode is None:
            child.process.send_signal(signal.SIGKILL)
        await child.process.wait()
        child.pipe.close()


async def connect(address: str, held: AsyncExitStack) -> None:
    """A connection that says nothing, whether or not it is let in."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    held.callback(writer.close)


async def answers(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await rpc.InferenceStub(channel).ListModels(pb.ListModelsRequest(), timeout=10)
        except grpc.aio.AioRpcError:
            return False
        return True


def open_files(child: Child) -> int:
    return len(list(Path(f"/proc/{child.process.pid}/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_strangers_at_both_doors_use_up_no_descriptor_that_it_needs(nats_url: str) -> None:
    async with fleet(nats_url), limited(nats_url, f"-n {LIMIT}") as child:
        capped = await event(child, "connections_limited")
        assert capped["open_files"] == LIMIT
        grpc_address = str((await event(child, "grpc_listening"))["grpc"])
        http_address = str((await event(child, "http_listening"))["http"])
        metrics = str((await event(child, "ready"))["metrics"])
        async with AsyncExitStack() as held:
            for address in (grpc_address, http_address):
                for _ in range(STRANGERS):
                    await connect(address, held)
            for url in (f"{metrics}/ready", f"{metrics}/live", f"{http_address}/health"):
                assert (await asyncio.to_thread(page, f"http://{url}")).strip()
            assert open_files(child) < LIMIT
        await until(lambda: answers(grpc_address))
        child.process.send_signal(signal.SIGTERM)
        said = await last_words(child)
    assert b"Too many open files" not in said
    assert said.count(b"\n") < MOST_LINES


@pytest.mark.skipif(sys.platform != "linux", reason="changes the limit of a process that runs")
async def test_it_comes_back_when_descriptors_do_and_says_little_meanwhile(nats_url: str) -> None:
    """Use up the descriptors as another would: here the limit falls to what is open."""
    async with fleet(nats_url), limited(nats_url, "-n 2000") as child:
        grpc_address = str((await event(child, "grpc_listening"))["grpc"])
        http_address = str((await event(child, "http_listening"))["http"])
        await event(child, "ready")
        soft, hard = resource.prlimit(child.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(child.process.pid, resource.RLIMIT_NOFILE, (open_files(child), hard))
        began_s = time.monotonic()
        async with AsyncExitStack() as held:
            for address in (grpc_address, http_address):
                for _ in range(STRANGERS):
                    await connect(address, held)
            await event(child, "connection_not_accepted")
        resource.prlimit(child.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: answers(grpc_address))
        assert await asyncio.to_thread(page, f"http://{http_address}/health") == "ok\n"
        most = MOST_LINES + LINES_PER_S * (time.monotonic() - began_s)
        child.process.send_signal(signal.SIGTERM)
        assert (await last_words(child)).count(b"\n") < most


@pytest.mark.thorough
async def test_a_service_raises_its_limit_to_all_that_it_may_have(nats_url: str) -> None:
    async with fleet(nats_url), limited(nats_url, "-Sn 200") as child:
        await event(child, "ready")
        soft, hard = resource.prlimit(child.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
