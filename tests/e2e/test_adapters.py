"""Adapters on a running stack: loaded, asked for, lost with a worker and unloaded, and no answer changes."""

from __future__ import annotations

import asyncio
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.engine import Engine
from shared.sampling.parameters import SamplingParams
from tests.e2e.conftest import WITH_RETRIEVER, GetStack
from tests.e2e.test_api_keys import commands_of
from tests.e2e.test_ways_in import penstock
from tests.support.adapters import save_adapter
from tests.support.client import Answer, connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.engine import drive, make_engine
from tests.support.stack import Stack
from tests.support.wait import until

COMMAND_TIMEOUT_S = 100
NAMES = ("first", "second", "late")
IDS = [(7 * index) % 250 + 10 for index in range(40)]
SHORT, LONG, STREAMS = 40, 300, 12
RESTART_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Engine:
    """What the stack should compute."""
    return make_engine(model_dir)


@pytest.fixture(scope="module")
def folders(engine: Engine, adapter_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = tmp_path_factory.mktemp("adapters")
    found = {"first": str(adapter_dir)}
    for seed, name in enumerate(NAMES[1:], start=1):
        found[name] = str(save_adapter(made / name, engine.model_config, seed=seed))
    for name, folder in found.items():
        engine.load_adapter(name, folder)
    return found


def command(stack: Stack, *argv: str) -> list[str]:
    return [sys.executable, "-m", "services.cli", "adapter", *argv, "--state-dir", str(stack.state_dir)]


def run(stack: Stack, *argv: str) -> str:
    """What it says; it succeeds."""
    done = subprocess.run(
        command(stack, *argv),
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stack(get_stack: GetStack, folders: dict[str, str]) -> Iterator[Stack]:
    """With two adapters: one of its command line, and one that was loaded since."""
    running = get_stack(*WITH_RETRIEVER)
    run(running, "load", "second", folders["second"])
    yield running
    run(running, "unload", "second")


def asked(model: str, max_tokens: int = SHORT) -> pb.GenerateRequest:
    message = request(IDS, max_tokens=max_tokens, ignore_eos=True)
    message.model = model
    return message


def expected(engine: Engine, adapter: str = "", count: int = SHORT) -> list[int]:
    how = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    engine.admit("alone", IDS, len(IDS), how, adapter=adapter)
    drawn = drive(engine, {"alone": list(IDS)})["alone"]
    engine.release("alone")
    return drawn


async def answers(stub: rpc.InferenceStub, *models: str) -> list[Answer]:
    return await asyncio.gather(*(generate(stub, asked(model)) for model in models))


async def having(stub: rpc.InferenceStub, model: str) -> set[str]:
    """The instances that serve it."""
    listed = (await stub.ListModels(pb.ListModelsRequest())).models
    return {instance.name for each in listed if each.name == model for instance in each.instances}


async def test_two_adapters_and_their_model_answer_side_by_side_as_in_one_process(
    stack: Stack, engine: Engine, model_dir: Path
) -> None:
    name = model_dir.name
    async with connect(stack.grpc) as stub:
        found = await answers(stub, name, f"{name}:first", f"{name}:second", f"{name}:first")
    wanted = [expected(engine, adapter) for adapter in ("", "first", "second", "first")]
    assert [answer.ids for answer in found] == wanted
    assert len({tuple(ids) for ids in wanted}) == 3
    assert [answer.prompt.model for answer in found if answer.prompt][1] == f"{name}:first"


def test_a_stack_says_what_could_not_be_loaded_and_serves(stack: Stack) -> None:
    said = [line for line in stack.log if "has not loaded the adapter broken" in line]
    assert {line.split()[2] for line in said} == {"prefill-0", "decode-0", "decode-1", "decode-2"}, said
    assert all("has no adapter_model.safetensors" in line for line in said)


async def test_blocks_of_a_model_are_no_use_to_its_adapter(stack: Stack, model_dir: Path) -> None:
    model, adapter = asked(model_dir.name), asked(f"{model_dir.name}:second")
    for message in (model, adapter):
        message.token_ids.ids[:] = IDS[::-1]  # of no other test
    async with connect(stack.grpc) as stub:

        async def cached(message: pb.GenerateRequest) -> int:
            answer = await generate(stub, message)
            assert answer.end is not None
            return answer.end.usage.cached_tokens

        await until(lambda: cached(model))  # from the second on, where the first was
        assert await cached(adapter) == 0
        await until(lambda: cached(adapter))


async def test_an_adapter_comes_and_goes_while_streams_run(
    stack: Stack, engine: Engine, model_dir: Path, folders: dict[str, str]
) -> None:
    name = model_dir.name
    async with connect(stack.grpc) as stub:
        base = asyncio.create_task(generate(stub, asked(name, LONG)))
        said = await asyncio.to_thread(run, stack, "load", "late", folders["late"])
        assert f"{name}:late is on decode-0, decode-1, decode-2, prefill-0" in said
        late = asyncio.create_task(generate(stub, asked(f"{name}:late", LONG)))
        listed = await asyncio.to_thread(run, stack, "list")
        assert [line.split()[0] for line in listed.splitlines()[1:]] == [
            f"{name}:{each}" for each in sorted([*NAMES, "broken"])
        ]
        await asyncio.to_thread(run, stack, "unload", "late")
        refused = await generate(stub, asked(f"{name}:late"))
        assert (await base).ids == expected(engine, "", LONG)
        assert (await late).ids == expected(engine, "late", LONG)
    assert refused.status == grpc.StatusCode.NOT_FOUND
    assert f"no adapter 'late': send {name} or one of {name}:first, {name}:second" in refused.details


@pytest.mark.thorough
async def test_streams_whose_worker_is_killed_go_on_with_their_adapter_and_the_worker_has_it_again(
    stack: Stack, engine: Engine, model_dir: Path
) -> None:
    name, wanted = f"{model_dir.name}:first", expected(engine, "first", LONG)
    async with connect(stack.grpc) as stub:
        whole = await having(stub, name)

        turns = itertools.cycle(sorted(each for each in whole if each.startswith("decode")))

        async def is_whole() -> bool:
            return await having(stub, name) == whole

        async def killed_under_streams() -> bool:
            """Whether one of them had to move: they go where the prompt is cached, or are over before."""
            streams = [asyncio.create_task(generate(stub, asked(name, LONG))) for _ in range(STREAMS)]
            await first_text(stub, asked(name))
            turn = next(turns)
            (victim,) = [each for each in stack.instances("decode") if each.id == turn]
            os.kill(victim.pid, signal.SIGKILL)
            moved = await asyncio.gather(*streams)
            assert [answer.ids for answer in moved] == [wanted] * STREAMS
            await until(
                lambda: victim.pid not in [each.pid for each in stack.instances()],
                timeout_s=RESTART_TIMEOUT_S,
            )
            await until(is_whole, timeout_s=RESTART_TIMEOUT_S)
            return any(answer.end.usage.replacements for answer in moved if answer.end)

        await until(killed_under_streams, timeout_s=2 * RESTART_TIMEOUT_S)
        found: Sequence[Answer] = await answers(stub, *[name] * 6)
    assert [answer.ids for answer in found] == [expected(engine, "first")] * 6
    await stack.until_idle()


async def first_text(stub: rpc.InferenceStub, message: pb.GenerateRequest) -> None:
    """Return when a stream behind all others has its first text."""
    call = stub.Generate(message)
    async for event in call:
        if event.HasField("text"):
            break
    call.cancel()


async def test_the_commands_of_the_page_do_as_they_say(
    stack: Stack, model_dir: Path, folders: dict[str, str]
) -> None:
    up, *commands = commands_of("cli", "Adapters")
    assert "--adapter sql=/adapters/sql" in up
    said = []
    for command in commands:
        words = shlex.split(
            command.replace("my-llama", model_dir.name).replace("/adapters/chat", folders["late"])
        )
        code, output = await penstock(stack, *words[1:], *(["--max-tokens", "4"] if "ask" in words else []))
        assert code == 0, output
        said.append(output)
    name = f"{model_dir.name}:chat"
    assert [name in output for output in said] == [True, True, False, True]
