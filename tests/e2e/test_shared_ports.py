"""Two gateways at one address for gRPC and one for HTTP: each connection is with one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.e2e.conftest import options
from tests.support.client import Answer, generate, request
from tests.support.data import REPOSITORY
from tests.support.http import call, http_client
from tests.support.stack import Instance, Stack
from tests.support.wait import until

LONG = request("Once upon a time", max_tokens=400, ignore_eos=True)
SHORT = request("Once upon a time", max_tokens=4, ignore_eos=True)
MAX_CONNECTIONS = 64
"""Tries until both gateways have one; that all go to one of two has a chance of 2 ** -63."""
CALLERS = 4
START_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def stack(model_dir: Path) -> Iterator[Stack]:
    patient = {"PENSTOCK_GATEWAY_DRAIN_TIMEOUT_S": "60"}  # for streams on a slow machine
    with Stack(*options(model_dir, None, 1, "auto"), "--gateway", "2", environ=patient) as running:
        yield running


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[rpc.InferenceStub]:
    """One of its own: gRPC shares connections of channels that look alike."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(address, options=own) as channel:
        yield rpc.InferenceStub(channel)


def gateway_of(answer: Answer) -> str:
    assert answer.prompt is not None, answer.details
    return answer.prompt.request_id.rpartition(".")[0]


@asynccontextmanager
async def both(stack: Stack) -> AsyncIterator[dict[str, rpc.InferenceStub]]:
    """A connection to each gateway, by its name."""
    found: dict[str, rpc.InferenceStub] = {}
    async with AsyncExitStack() as connections:
        for _ in range(MAX_CONNECTIONS):
            stub = await connections.enter_async_context(connection(stack.grpc))
            found[gateway_of(await generate(stub, SHORT))] = stub
            if len(found) == 2:
                break
        yield found


async def begun(stub: rpc.InferenceStub, message: pb.GenerateRequest) -> tuple[asyncio.Task[Answer], str]:
    """A stream that runs, and its id."""
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read() -> Answer:
        answer, started = Answer(), 0.0
        try:
            async for event in stub.Generate(message, timeout=START_TIMEOUT_S):
                answer.add(event, started)
                if event.HasField("text") and not heard.done():
                    assert answer.prompt is not None
                    heard.set_result(answer.prompt.request_id)
        except grpc.aio.AioRpcError as error:  # an answer that is not finished ends with a status
            answer.status = error.code()
        return answer

    running = asyncio.create_task(read())
    return running, await asyncio.wait_for(heard, START_TIMEOUT_S)


async def ended_anew(stack: Stack, ended: Instance) -> None:
    """Wait until a fresh process of this instance is known to the stack."""

    def lives() -> bool:
        (now,) = [one for one in stack.instances("gateway") if one.id == ended.id]
        return now.pid != ended.pid and bool(now.grpc)

    await until(lives, timeout_s=START_TIMEOUT_S)


@asynccontextmanager
async def callers(stack: Stack) -> AsyncIterator[list[str]]:
    """Clients that connect anew for each call, over gRPC and HTTP; what they get is "ok" or why not."""
    enough = asyncio.Event()
    got: list[str] = []

    async def by_grpc() -> None:
        while not enough.is_set():
            async with connection(stack.grpc) as stub:
                answer = await generate(stub, SHORT)
            got.append("ok" if answer.end is not None else answer.details)

    async def by_http() -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 4, "model": stack_model}
        while not enough.is_set():
            async with http_client(stack.http) as client:
                try:
                    reply = await call(client, "/v1/completions", body)
                except OSError as error:
                    got.append(repr(error))
                else:
                    got.append("ok" if reply.status == 200 else str(reply.body))

    async with http_client(stack.http) as client:
        stack_model = (await call(client, "/v1/models")).body["data"][0]["id"]
    running = [asyncio.create_task(one()) for one in (by_grpc, by_http) for _ in range(CALLERS)]
    try:
        await until(lambda: len(got) >= 2 * CALLERS)
        yield got
    finally:
        enough.set()
        await asyncio.gather(*running)


async def test_each_gateway_is_met_at_the_one_address_and_has_metrics_of_its_own(stack: Stack) -> None:
    first, second = stack.instances("gateway")
    assert (first.grpc, first.http) == (second.grpc, second.http) == (stack.grpc, stack.http)
    assert first.metrics != second.metrics
    async with both(stack) as stubs:
        assert sorted(stubs) == ["gateway-0", "gateway-1"]


async def test_a_request_is_cancelled_through_the_other_gateway(stack: Stack) -> None:
    async with both(stack) as stubs:
        running, request_id = await begun(stubs["gateway-0"], LONG)
        assert (await stubs["gateway-1"].Cancel(pb.CancelRequest(request_id=request_id))).found
        assert (await running).outcome == "cancelled"


async def test_a_gateway_that_drains_finishes_its_streams_and_loses_no_connection(stack: Stack) -> None:
    drained = stack.instances("gateway")[0]
    async with both(stack) as stubs, callers(stack) as got:
        running, _ = await begun(stubs[drained.id], LONG)
        os.kill(drained.pid, signal.SIGTERM)
        assert (await running).outcome == "finished"
        await ended_anew(stack, drained)
    assert set(got) == {"ok"}


async def test_new_connections_work_beside_a_gateway_that_was_killed(stack: Stack) -> None:
    killed = stack.instances("gateway")[1]
    os.kill(killed.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{killed.pid}").exists())
    async with connection(stack.grpc) as stub, http_client(stack.http) as client:
        assert (await generate(stub, SHORT)).outcome == "finished"
        assert (await call(client, "/health")).status == 200
    await ended_anew(stack, killed)


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_a_second_stack_never_shares_them(stack: Stack, tmp_path: Path, kind: str) -> None:
    port = getattr(stack, kind).rpartition(":")[2]
    ports = {"grpc": "0", "http": "0", kind: port}
    command = [sys.executable, "-m", "services.cli", "up", "--gateway", "2", "--state-dir", str(tmp_path)]
    for name, chosen in ports.items():
        command += [f"--{name}-port", chosen]
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
    )
    assert ended.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr + ended.stdout
    assert f"pass --{kind}-port 0 for any free port" in ended.stderr + ended.stdout
