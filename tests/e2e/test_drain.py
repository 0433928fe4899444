"""`penstock drain` on a running stack: the instance ends, and no stream notices."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.e2e.conftest import options
from tests.support.client import Answer, connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.stack import Stack
from tests.support.wait import until

STREAMS = 4
REQUEST = request("Once upon a time", max_tokens=120, ignore_eos=True)


@pytest.fixture(scope="module")
def stack(model_dir: Path) -> Iterator[Stack]:
    two = ("--prefill", "2", "--detokenizer", "2")
    with Stack(*options(model_dir, None, 2, "auto"), *two) as running:
        yield running


async def drain(
    stack: Stack, instance: str, *argv: str, command: str = "drain", sure: Sequence[str] = ("--yes",)
) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "services.cli",
            command,
            instance,
            *sure,
            "--state-dir",
            str(stack.state_dir),
            *argv,
        ),
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    ended = await ended_program(process)
    return ended.code, ended.out


def lives(stack: Stack, instance: str) -> int:
    """How many of its processes have become ready."""
    return sum(f"{instance} ready in " in line for line in stack.log)


async def stream_on(stub: rpc.InferenceStub, enough: asyncio.Event, answers: list[Answer]) -> None:
    """One stream after the other, so that there is work wherever it is drained."""
    while not enough.is_set():
        answers.append(await generate(stub, REQUEST))


@asynccontextmanager
async def streaming(stub: rpc.InferenceStub) -> AsyncIterator[list[Answer]]:
    """Streams until the end of the block; it begins when each has run once."""
    enough = asyncio.Event()
    answers: list[Answer] = []
    running = [asyncio.create_task(stream_on(stub, enough, answers)) for _ in range(STREAMS)]
    try:
        await until(lambda: len(answers) >= STREAMS)
        yield answers
    finally:
        enough.set()
        await asyncio.gather(*running)


@pytest.mark.thorough(but="decode")
@pytest.mark.parametrize("role", ["decode", "detokenizer"])
async def test_streams_of_a_drained_instance_finish_exactly_and_a_fresh_one_takes_its_place(
    stack: Stack, role: str
) -> None:
    drained = stack.instances(role)[0]
    before = lives(stack, drained.id)
    async with connect(stack.grpc) as stub:
        expected = await generate(stub, REQUEST)
        async with streaming(stub) as answers:
            code, said = await drain(stack, drained.id)
        await until(lambda: lives(stack, drained.id) > before, timeout_s=60)
        fresh = await generate(stub, REQUEST)
    assert code == 0, said
    begun, ended = said.splitlines()
    assert re.fullmatch(rf"{drained.id} drains; it holds \d+", begun)
    assert re.fullmatch(rf"{drained.id} has left .*after [\d.]+ s", ended)
    for answer in (*answers, fresh):
        assert (answer.outcome, answer.ids, answer.text) == ("finished", expected.ids, expected.text)


async def test_a_role_is_restarted_one_instance_after_another_and_no_stream_notices(stack: Stack) -> None:
    """Nobody is asked: another one is ready each time."""
    before = {instance.id: instance.pid for instance in stack.instances("decode")}
    async with connect(stack.grpc) as stub:
        expected = await generate(stub, REQUEST)
        async with streaming(stub) as answers:
            code, said = await drain(stack, "decode", command="restart", sure=())
    assert code == 0, said
    again = [line for line in said.splitlines() if "is ready again after" in line]
    assert [line.split()[0] for line in again] == ["decode-0", "decode-1"]
    after = {instance.id: instance.pid for instance in stack.instances("decode")}
    assert [int(line.split()[-1]) for line in again] == [*after.values()]
    assert not {*before.values()} & {*after.values()}
    for answer in answers:
        assert (answer.outcome, answer.ids, answer.text) == ("finished", expected.ids, expected.text)


@pytest.mark.thorough
async def test_who_does_not_end_in_time_goes_on_draining(stack: Stack) -> None:
    drained = stack.instances("decode")[0]
    before = lives(stack, drained.id)
    async with connect(stack.grpc) as stub, streaming(stub) as answers:
        code, said = await drain(stack, drained.id, "--timeout", "0.000001")
    await until(lambda: lives(stack, drained.id) > before, timeout_s=60)
    assert code == 3
    assert re.fullmatch(
        rf"{drained.id} still holds \d+ after 1e-06 s and goes on draining", said.splitlines()[1]
    )
    assert {answer.end.outcome for answer in answers if answer.end} == {pb.OUTCOME_FINISHED}


@pytest.mark.thorough(but="detokenizer")
@pytest.mark.parametrize("role", ["decode", "detokenizer"])
async def test_a_stopped_instance_is_killed_and_its_next_life_serves(stack: Stack, role: str) -> None:
    stopped = stack.instances(role)[0]
    os.kill(stopped.pid, signal.SIGSTOP)
    code, said = await drain(stack, stopped.id, "--kill-after", "1", command="restart", sure=())
    assert code == 0, said
    silent, hangs, ended, again = said.splitlines()
    assert silent == f"{stopped.id} says nothing; it is asked to drain, for 1 s at most"
    assert hangs == (
        f"{stopped.id} hangs: it has not answered for 1 s; its process {stopped.pid} is killed (SIGKILL)"
    )
    assert ended.startswith(f"{stopped.id} has ended after ")
    (pid,) = [each.pid for each in stack.instances(role) if each.id == stopped.id]
    assert again.endswith(f" s, as process {pid}")
    assert pid != stopped.pid
    assert any(f"{stopped.id} was killed by SIGKILL" in line for line in stack.log)
    async with connect(stack.grpc) as stub:
        assert (await generate(stub, REQUEST)).outcome == "finished"


async def test_an_instance_that_does_not_exist_is_not_drained(stack: Stack) -> None:
    code, said = await drain(stack, "decode-9")
    assert code == 1
    assert said.startswith("no instance 'decode-9' is heard on this bus; there is decode-0, ")
