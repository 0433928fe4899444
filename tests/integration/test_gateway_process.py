"""The gateway as a process: how it starts, refuses to start, and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.bus.fleet import FleetView
from shared.degradation import DegradationLevel
from tests.integration.gateway_peers import GATEWAY, ask, fleet
from tests.support.client import generate
from tests.support.wait import until

START_TIMEOUT_S = 30


@asynccontextmanager
async def process(nats_url: str, **options: str) -> AsyncIterator[Process]:
    environ = {**os.environ, "PENSTOCK_NATS_URL": nats_url, "PENSTOCK_INSTANCE": GATEWAY}
    environ |= {f"PENSTOCK_GATEWAY_{name.upper()}": value for name, value in options.items()}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", env=environ, stdout=PIPE, stderr=PIPE
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def event(child: Process, name: str) -> dict[str, object]:
    """The log line of `name`, once it comes."""
    assert child.stderr is not None
    async with asyncio.timeout(START_TIMEOUT_S):
        async for line in child.stderr:
            if line.startswith(b"{") and (entry := json.loads(line)).get("event") == name:
                return dict(entry)
    raise AssertionError(f"the process ended before it logged {name}")


async def test_it_serves_when_the_fleet_is_there_and_drains_on_sigterm(nats_url: str) -> None:
    async with fleet(nats_url) as peers, process(nats_url) as child:
        address = (await event(child, "grpc_listening"))["grpc"]
        await event(child, "ready")
        async with grpc.aio.insecure_channel(str(address)) as channel:
            call = asyncio.create_task(generate(rpc.InferenceStub(channel), ask("hello")))
            envelope, _ = await peers.placed()
            child.send_signal(signal.SIGTERM)
            await event(child, "draining")
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            assert (await call).outcome == "finished"
        assert await asyncio.wait_for(child.wait(), START_TIMEOUT_S) == 0


async def test_under_pressure_it_logs_its_level_once_and_tells_the_fleet(nats_url: str) -> None:
    view = FleetView()
    async with fleet(nats_url, "tokenizer", "decode", "detokenizer") as peers, process(nats_url) as child:
        await peers.add("prefill", queued_tokens=25_000, tokens_per_s=1000.0)
        await view.start(peers.bus)
        address = (await event(child, "grpc_listening"))["grpc"]
        await event(child, "ready")
        request = ask("hello")
        request.ttft_deadline_ms = 100_000
        async with grpc.aio.insecure_channel(str(address)) as channel:
            call = rpc.InferenceStub(channel).Generate(request, timeout=200.0)
            logged = await event(child, "degradation")

            def told() -> int:
                gateway = view.get("gateway", GATEWAY)
                return 0 if gateway is None else gateway.heartbeat.degradation

            await until(lambda: told() == DegradationLevel.SHORT_DRAFTS)
            call.cancel()
        await view.stop()
    assert (logged["was"], logged["now"], logged["pressure"]) == ("none", "short_drafts", 0.25)


async def test_a_wrong_setting_stops_it_with_exit_2_and_its_name(nats_url: str) -> None:
    async with process(nats_url, max_sessions="0") as child:
        _, errors = await asyncio.wait_for(child.communicate(), START_TIMEOUT_S)
    assert child.returncode == 2
    assert b"MAX_SESSIONS" in errors


async def test_a_taken_port_stops_it_with_a_sentence(nats_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with process(nats_url, grpc_port=str(port)) as child:
            _, errors = await asyncio.wait_for(child.communicate(), START_TIMEOUT_S)
    assert child.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}".encode() in errors
