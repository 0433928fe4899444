"""Two gateways at one address for gRPC and one for HTTP: each connection is with one of them.

A stream goes on at the other when its gateway is gone: same text, nothing twice, no gap.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from penstock.client import AsyncClient
from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.e2e.conftest import options
from tests.support.broken_streams import Events, Read
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
STORY = "Once upon a time"
ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "max_tokens": 400, "ignore_eos": True},
    {"temperature": 1.0, "seed": 7, "max_tokens": 200, "ignore_eos": True, "logprobs": 2},
    {"temperature": 0.8, "seed": 8, "max_tokens": 250, "regex": "[a-z ,.]{150,}"},
    {"temperature": 1.0, "seed": 9, "max_tokens": 400, "ignore_eos": True, "stop": ["qzj", "zzzz"]},
)
BODY = {
    "prompt": STORY,
    "temperature": 1.0,
    "seed": 7,
    "max_tokens": 400,
    "ignore_eos": True,
    "stream": True,
}
RESUMABLE = {**BODY, "penstock": {"resumable": True}}
BEGUN_TOKENS = 8
"""So many tokens of a stream have come when its gateway is killed."""
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


@pytest.mark.thorough
async def test_new_connections_work_beside_a_gateway_that_was_killed(stack: Stack) -> None:
    killed = stack.instances("gateway")[1]
    os.kill(killed.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{killed.pid}").exists())
    async with connection(stack.grpc) as stub, http_client(stack.http) as client:
        assert (await generate(stub, SHORT)).outcome == "finished"
        assert (await call(client, "/health")).status == 200
    await ended_anew(stack, killed)


# ---- streams of a killed gateway ----


async def kill_gateway_of(stack: Stack, request_id: str) -> Instance:
    """Kill the gateway that has the request."""
    name = request_id.rpartition(".")[0]
    (killed,) = [one for one in stack.instances("gateway") if one.id == name]
    os.kill(killed.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{killed.pid}").exists(), timeout_s=START_TIMEOUT_S)
    return killed


async def test_streams_of_a_killed_gateway_go_on_as_if_nothing_had_happened(stack: Stack) -> None:
    async with AsyncClient(stack.grpc) as client:
        undisturbed = [Read(client.generate(STORY, **asked)) for asked in ASKED]
        await asyncio.gather(*(read.go_on() for read in undisturbed))
        reads = [Read(client.generate(STORY, **asked)) for asked in ASKED]
        await asyncio.gather(*(read.go_on(BEGUN_TOKENS) for read in reads))
        first = [read.stream.prompt.request_id for read in reads]
        killed = await kill_gateway_of(stack, first[0])
        await asyncio.gather(*(read.go_on() for read in reads))
    assert any(read.stream.prompt.request_id not in first for read in reads)
    for read, expected in zip(reads, undisturbed, strict=True):
        assert (read.text, read.ids, read.positions) == (expected.text, expected.ids, expected.positions)
        assert read.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        usage, told = read.stream.end.usage, expected.stream.end.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (told.prompt_tokens, told.completion_tokens)
        assert read.stream.end.finish_reason == expected.stream.end.finish_reason
    await ended_anew(stack, killed)
    await stack.until_idle()


@pytest.mark.thorough
async def test_a_stream_of_events_goes_on_after_the_last_event_that_came(stack: Stack) -> None:
    whole, broken = Events(), Events()
    async with http_client(stack.http) as client:
        async with client.post("/v1/completions", json=BODY) as response:
            await whole.read(response)
        async with client.post("/v1/completions", json=RESUMABLE) as response:
            await broken.read(response, BEGUN_TOKENS)
            killed = await kill_gateway_of(stack, response.headers["x-penstock-request-id"])
    async with http_client(stack.http) as client:
        headers = {"Last-Event-ID": broken.last_id}
        async with client.post("/v1/completions", json=RESUMABLE, headers=headers) as response:
            await broken.read(response)
    assert (broken.text, broken.finishes, broken.done) == (whole.text, ["length"], True)
    assert len(broken.names) == 1
    await ended_anew(stack, killed)
    await stack.until_idle()


async def read_on(call: Any, answer: Answer) -> None:
    async for event in call:
        answer.add(event, 0.0)


async def test_a_client_that_comes_while_its_stream_still_runs_takes_it_over(stack: Stack) -> None:
    asked = pb.GenerateRequest(
        text=STORY, resumable=True, sampling=pb.Sampling(temperature=0.0, max_tokens=400, ignore_eos=True)
    )
    async with connection(stack.grpc) as stub, connection(stack.grpc) as other:
        whole = await generate(stub, asked)
        begun, first = Answer(), stub.Generate(asked, timeout=START_TIMEOUT_S)
        events = aiter(first)
        while len(begun.ids) < BEGUN_TOKENS:
            begun.add(await anext(events), 0.0)
        assert begun.prompt is not None
        token, received = begun.prompt.resume_token, len(begun.ids)
        again = Answer()
        resume = pb.ResumeRequest(token=token, received_tokens=received, request=asked)
        await read_on(other.Resume(resume, timeout=START_TIMEOUT_S), again)
        with pytest.raises(grpc.aio.AioRpcError):
            await read_on(events, begun)
        late = other.Resume(resume, timeout=START_TIMEOUT_S)
        assert (await late.read()).end.error.code == "stream_lost"
        assert await first.code() is grpc.StatusCode.CANCELLED
    assert begun.end is not None
    assert begun.end.error.code == "stream_taken_over"
    assert begun.ids[:received] + again.ids == whole.ids
    assert again.positions[0] == whole.positions[received]


@pytest.mark.thorough(but="grpc")
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
