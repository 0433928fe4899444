"""Two models in one stack: each has workers of its own, and nothing of one is ever taken for the other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.fleet.fleet_watch import BusAddress, listening
from services.cli.planner.fleet_planner import FleetPlanner
from services.cli.planner.fleet_sight import FleetSight
from services.cli.planner.launcher_scaler import LauncherScaler
from services.cli.planner.plan_loop import PlanLoop, unix_s
from services.cli.planner.plan_record import PlanRecord
from services.cli.planner.planner_settings import PlannerSettings
from services.cli.stack_file import stack_address, stack_credentials
from shared.bus.credentials import load_credentials
from shared.engine import load_model_config
from shared.roles import REQUIRED_ROLES
from shared.tasks import start_task
from shared.text.model_source import DEMO_MODEL
from tests.e2e.test_ways_in import penstock
from tests.support.adapters import save_adapter
from tests.support.client import Answer, connect, generate, request
from tests.support.http import call, http_client
from tests.support.oracle import Oracle
from tests.support.stack import Instance, Stack, metrics_of
from tests.support.terminal import CTRL_D, Terminal
from tests.support.wait import until

FIRST, SECOND = "stories", "demo"
IDS = [(7 * index) % 250 + 10 for index in range(64)]
"""A prompt that both models can read, of four whole blocks."""
TEXT = "Once upon a time there was a gate"
COUNT = 24
RESTART_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def stack(model_dir: Path, draft_dir: Path) -> Iterator[Stack]:
    """Kept answers on, every prompt on its way over the KV path, and a draft of the first model."""
    options = ["--model", f"{FIRST}={model_dir}", "--model", f"{SECOND}={DEMO_MODEL}", "--corpus", "none"]
    options += ["--draft", str(draft_dir)]
    environ = {
        "PENSTOCK_GATEWAY_CACHE_MODE": "exact",
        "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
        "PENSTOCK_MODEL_DTYPE": "float32",
    }
    with Stack(*options, environ=environ) as running:
        yield running


@pytest.fixture(scope="module")
def oracles(model_dir: Path) -> dict[str, Oracle]:
    return {FIRST: Oracle(model_dir), SECOND: Oracle(DEMO_MODEL)}


def to(model: str, prompt: str | list[int], cache: pb.CacheMode = pb.CACHE_MODE_OFF) -> pb.GenerateRequest:
    message = request(prompt, max_tokens=COUNT)
    message.model = model
    message.cache.mode = cache
    return message


async def asked(stack: Stack, message: pb.GenerateRequest) -> Answer:
    async with connect(stack.grpc) as stub:
        return await generate(stub, message)


def instance_of(stack: Stack, role: str, model: str) -> Instance:
    """Models take turns in the numbers of a role."""
    return stack.instances(role)[(FIRST, SECOND).index(model)]


def generated(stack: Stack, model: str) -> float:
    """The tokens that the gateway has counted for the model."""
    (gateway,) = stack.instances("gateway")
    start = f'penstock_generation_tokens_total{{model="{model}"}} '
    lines = [line for line in metrics_of(gateway).splitlines() if line.startswith(start)]
    return sum(float(line.removeprefix(start)) for line in lines)


async def test_the_list_has_both_the_first_named_one_first_with_what_they_can_do(stack: Stack) -> None:
    async with connect(stack.grpc) as stub:

        async def listed_when_all_serve() -> list[pb.Model] | None:
            """One whose process a test before has killed comes back first."""
            models = list((await stub.ListModels(pb.ListModelsRequest())).models)
            served = [{each.role for each in model.instances} for model in models[:2]]
            return models if served == [set(REQUIRED_ROLES)] * 2 else None

        models = await until(listed_when_all_serve)
        assert isinstance(models, list)
    assert [(model.name, model.is_default) for model in models] == [
        (FIRST, True),
        (SECOND, False),
        (models[2].name, False),  # that of the retriever
    ]
    for model in models[:2]:
        served_by = {each.role: each.name for each in model.instances}
        assert served_by == {role: instance_of(stack, role, model.name).id for role in REQUIRED_ROLES}
    async with http_client(stack.http) as client:
        listed = (await call(client, "/v1/models")).body["data"]
    told = {each["id"]: each["penstock"] for each in listed}
    assert told[FIRST]["capabilities"] == ["complete"]
    assert told[models[2].name]["capabilities"] == ["embed"]
    assert (told[FIRST]["default"], told[SECOND]["default"]) == (True, False)


@pytest.mark.thorough(but="1")
@pytest.mark.parametrize("cache", [pb.CACHE_MODE_OFF, pb.CACHE_MODE_EXACT])
async def test_one_prompt_to_both_in_turns_gets_each_one_s_own_answer(
    stack: Stack, oracles: dict[str, Oracle], cache: pb.CacheMode
) -> None:
    """The second time its blocks are in the prefix caches, and its answers are kept where they may be."""
    expected = {model: oracle.greedy(IDS, COUNT) for model, oracle in oracles.items()}
    assert expected[FIRST] != expected[SECOND]
    texts = {model: oracle.greedy(oracle.encode(TEXT), COUNT) for model, oracle in oracles.items()}
    for _ in range(3):
        for model in (FIRST, SECOND):
            answer = await asked(stack, to(model, IDS, cache))
            assert answer.ids == expected[model]
            assert answer.prompt is not None
            assert answer.prompt.model == model
            assert (await asked(stack, to(model, TEXT, cache))).ids == texts[model]


async def test_an_answer_that_is_kept_of_one_is_never_the_other_s(
    stack: Stack, oracles: dict[str, Oracle]
) -> None:
    ids = IDS[::-1]

    async def cached(model: str) -> bool:
        answer = await asked(stack, to(model, ids, pb.CACHE_MODE_EXACT))
        assert answer.ids == oracles[model].greedy(ids, COUNT)
        assert answer.prompt is not None
        return answer.prompt.HasField("cached")

    await until(lambda: cached(FIRST))
    assert not await cached(SECOND)
    await until(lambda: cached(SECOND))
    await until(lambda: cached(FIRST))  # a busy machine looks for an answer in vain


async def test_requests_of_both_at_once_keep_apart_over_grpc_and_http(
    stack: Stack, oracles: dict[str, Oracle]
) -> None:
    prompts = [TEXT[:length] for length in (1, 4, 9, 16, 21, 33)]

    async def over_http(client: aiohttp.ClientSession, model: str, prompt: str) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": COUNT, "temperature": 0}
        reply = await call(client, "/v1/completions", body)
        assert reply.status == 200, reply.body
        assert reply.body["model"] == model
        ids = oracles[model].encode(prompt)
        text = oracles[model].continuation(ids, oracles[model].greedy(ids, COUNT))
        assert reply.body["choices"][0]["text"] == text

    async def over_grpc(stub: rpc.InferenceStub, model: str, prompt: str) -> None:
        expected = oracles[model].greedy(oracles[model].encode(prompt), COUNT)
        assert (await generate(stub, to(model, prompt))).ids == expected

    async with connect(stack.grpc) as stub, http_client(stack.http) as client:
        pairs = [(model, prompt) for prompt in prompts for model in (FIRST, SECOND)]
        calls = [over_grpc(stub, *pair) for pair in pairs] + [over_http(client, *pair) for pair in pairs]
        await asyncio.gather(*calls)


async def test_a_request_without_a_model_takes_the_first_and_one_with_an_unknown_one_hears_of_both(
    stack: Stack, oracles: dict[str, Oracle]
) -> None:
    answer = await asked(stack, to("", IDS))
    assert answer.ids == oracles[FIRST].greedy(IDS, COUNT)
    assert answer.prompt is not None
    assert answer.prompt.model == FIRST
    refused = await asked(stack, to("third", IDS))
    assert refused.status is grpc.StatusCode.NOT_FOUND
    sentence = f"model 'third' is not served: send one of {SECOND}, {FIRST}"
    assert refused.details == f"gateway: {sentence}"
    async with http_client(stack.http) as client:
        reply = await call(client, "/v1/completions", {"model": "third", "prompt": "a"})
        assert (reply.status, reply.error["message"]) == (404, sentence)
        for model in (FIRST, SECOND):
            ids = (await call(client, "/tokenize", {"model": model, "prompt": TEXT})).body["tokens"]
            assert ids == oracles[model].encode(TEXT)
        ids = (await call(client, "/tokenize", {"prompt": TEXT})).body["tokens"]
        assert ids == oracles[FIRST].encode(TEXT)
        text = (await call(client, "/detokenize", {"tokens": ids})).body["prompt"]
        assert text.strip() == TEXT


@pytest.mark.thorough
async def test_an_adapter_over_one_is_none_of_the_other_s(
    stack: Stack, oracles: dict[str, Oracle], tmp_path: Path
) -> None:
    folder = save_adapter(tmp_path / "own", load_model_config(DEMO_MODEL))
    code, output = await penstock(stack, "adapter", "load", "own", str(folder), "--base", SECOND)
    assert code == 0, output
    changed = await asked(stack, to(f"{SECOND}:own", IDS))
    assert changed.outcome == "finished"
    assert changed.ids != oracles[SECOND].greedy(IDS, COUNT)
    refused = await asked(stack, to(f"{FIRST}:own", IDS))
    assert refused.status is grpc.StatusCode.NOT_FOUND
    assert (await asked(stack, to(SECOND, IDS))).ids == oracles[SECOND].greedy(IDS, COUNT)
    code, output = await penstock(stack, "adapter", "unload", "own", "--base", SECOND)
    assert code == 0, output


async def test_commands_name_the_model_and_status_shows_who_has_which(stack: Stack) -> None:
    code, output = await penstock(stack, "ask", TEXT, "--model", SECOND, "--max-tokens", "4", "--json")
    assert code == 0
    (prompt,) = [event for line in output.splitlines() if (event := json.loads(line))["event"] == "prompt"]
    assert prompt["model"] == SECOND
    code, output = await penstock(stack, "status")
    assert code == 0
    lines = {line.split()[1]: line.split() for line in output.splitlines() if "-" in line and line.split()}
    for role in REQUIRED_ROLES:
        for model in (FIRST, SECOND):
            assert model in lines[instance_of(stack, role, model).id]


@pytest.mark.thorough
async def test_a_conversation_switches_from_one_to_the_other(stack: Stack) -> None:
    command = (sys.executable, "-m", "services.cli", "chat", "--state-dir", str(stack.state_dir))
    with Terminal([*command, "--max-tokens", "8", "--ignore-eos"]) as terminal:
        assert FIRST in await asyncio.to_thread(terminal.until, "> ")  # the banner
        terminal.enter("/model\n")
        listed = await asyncio.to_thread(terminal.until, "> ")
        assert f"* {FIRST}" in listed
        assert f"  {SECOND}" in listed
        terminal.enter(f"/model {SECOND}\n")
        await asyncio.to_thread(terminal.until, f"{SECOND} answers from now on")
        await asyncio.to_thread(terminal.until, "> ")
        before = generated(stack, SECOND)
        terminal.enter("Once\n")
        await until(lambda: generated(stack, SECOND) == before + 8)
        terminal.enter(CTRL_D)
        assert await asyncio.to_thread(terminal.end) == 0


async def test_metrics_tell_the_models_apart(stack: Stack) -> None:
    for model, other in ((FIRST, SECOND), (SECOND, FIRST)):
        before = generated(stack, model), generated(stack, other)
        answer = await asked(stack, to(model, IDS))
        assert (generated(stack, model), generated(stack, other)) == (before[0] + len(answer.ids), before[1])
        for role in REQUIRED_ROLES:
            shown = metrics_of(instance_of(stack, role, model))
            assert f'penstock_served_model{{model="{model}"}} 1.0' in shown
            assert f'model="{other}"' not in shown


@pytest.mark.thorough(but="decode")
@pytest.mark.parametrize("role", REQUIRED_ROLES)
async def test_a_model_whose_worker_dies_takes_no_request_of_the_other_along(
    stack: Stack, oracles: dict[str, Oracle], role: str
) -> None:
    """While it is away the other answers as before; requests for it wait until it is back."""
    lost = instance_of(stack, role, SECOND)
    ids, expected = IDS[:9], oracles[FIRST].greedy(IDS[:9], 200)
    message = request(ids, max_tokens=200)
    message.model = FIRST
    async with connect(stack.grpc) as stub:
        streams = [asyncio.create_task(generate(stub, message)) for _ in range(4)]
        await asyncio.sleep(0)
        os.kill(lost.pid, signal.SIGKILL)
        waiting = [asyncio.create_task(generate(stub, to(SECOND, IDS[:length]))) for length in (5, 17)]
        for stream in streams:
            answer = await stream
            assert answer.ids == expected
            assert answer.end is not None
            assert answer.end.usage.replacements == 0
        for length, call_of_second in zip((5, 17), waiting, strict=True):
            answer = await call_of_second
            assert answer.ids == oracles[SECOND].greedy(IDS[:length], COUNT), answer
    await until(lambda: instance_of(stack, role, SECOND).pid != lost.pid, timeout_s=RESTART_TIMEOUT_S)


@pytest.mark.thorough
async def test_a_model_that_rests_comes_back_for_a_request_that_names_it(
    stack: Stack, oracles: dict[str, Oracle]
) -> None:
    """The planner hears of the request in the heartbeat of the gateway, which keeps it meanwhile."""
    scaler, credentials = LauncherScaler(stack.state_dir), stack_credentials(stack.state_dir, "")
    address = BusAddress(stack_address(stack.state_dir, "nats", ""), load_credentials(credentials))
    async with listening(address) as (_, fleet):
        await fleet.collect(frozenset({"decode-0", "decode-1", "tokenizer-0", "tokenizer-1", "gateway-0"}))

        def seen() -> FleetSight:
            return FleetSight.of(fleet.all(), time.monotonic())

        awake = {"prefill": 1, "decode": 1}
        await scaler.apply(seen(), {FIRST: awake, SECOND: {"prefill": 0, "decode": 0}})
        await until(lambda: not seen().counts[SECOND]["decode"], timeout_s=RESTART_TIMEOUT_S)
        planner = FleetPlanner(PlannerSettings(), None, unix_s(), 1)
        work = PlanLoop(fleet, planner, scaler, PlanRecord(None)).run(lambda done: bool(done.changes))
        planning = start_task(work, name="plan")
        answer = await asked(stack, to(SECOND, IDS))
        done = await planning
    assert answer.ids == oracles[SECOND].greedy(IDS, COUNT)
    assert {(change.model, change.now, change.wanted) for change in done.changes} == {(SECOND, 0, 1)}


async def test_nothing_is_held_in_the_end(stack: Stack) -> None:
    assert (await asked(stack, to(FIRST, IDS))).outcome == "finished"
    await stack.until_idle()
