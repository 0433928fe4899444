"""A model that was pulled, served by its name."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.text.model_source import DEMO_MODEL
from tests.e2e.test_api_keys import commands_of
from tests.e2e.test_ways_in import run
from tests.support.client import connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.hub import running_hub
from tests.support.oracle import Oracle
from tests.support.stack import Stack

SMALL = ("--corpus", "none", "--retriever", "0", "--draft", "none")
IDS = [5, 6, 7] * 10


@pytest.mark.thorough
async def test_a_kept_model_is_served_by_its_name_and_stays_while_a_stack_serves_it(
    model_dir: Path, oracle: Oracle
) -> None:
    code, _ = await run("-m", "services.cli", "pull", str(model_dir), "--name", "org/kept@v1")
    assert code == 0
    with Stack(*SMALL, "--model", "org/kept@v1") as stack:
        async with connect(stack.grpc) as stub:
            message = request(IDS, max_tokens=16)
            message.model = "org/kept@v1"
            answer = await generate(stub, message)
        assert answer.ids == oracle.greedy(IDS, 16)
        for command in (("rm", "org/kept@v1", "--yes"), ("pull", str(model_dir), "--name", "org/kept@v1")):
            code, output = await run("-m", "services.cli", *command)
            assert (code, output) == (1, "")
        code, output = await run("-m", "services.cli", "list")
        assert "org/kept@v1" in output
    code, output = await run("-m", "services.cli", "rm", "org/kept@v1", "--yes")
    assert (code, output.startswith("org/kept@v1 is removed")) == (0, True)


async def test_the_commands_of_the_page_do_as_they_say(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the page are those of a hub on this machine and of a folder beside it."""
    shutil.copytree(model_dir, tmp_path / "my-llama")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fetch, copy, listed, shown, up, remove = commands_of("cli", "Models that are kept")
    with running_hub("org/name", DEMO_MODEL) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        assert await typed(fetch, tmp_path) == (0, "org/name: 10.2 MB, BF16, sha256 29c96ccecb300c11\n")
    assert (await typed(copy, tmp_path))[0] == 0
    code, output = await typed(listed, tmp_path)
    assert (code, [line.split()[0] for line in output.splitlines()]) == (0, ["name", "mine", "org/name"])
    code, output = await typed(shown, tmp_path)
    assert (code, "LlamaForCausalLM" in output) == (0, True)
    options = shlex.split(up)[2:]
    with Stack(*SMALL, *options) as stack:
        async with connect(stack.grpc) as stub:
            models = (await stub.ListModels(pb.ListModelsRequest())).models
        assert [model.name for model in models] == ["mine"]
        code, _ = await typed(remove, tmp_path)
        assert code == 1
    assert (await typed(remove, tmp_path))[0] == 0


async def typed(command: str, folder: Path) -> tuple[int, str]:
    """Exit code and standard output of a command of the page."""
    program, *argv = shlex.split(command)
    assert program == ".venv/bin/penstock"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *argv),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    ended = await ended_program(process)
    return ended.code, ended.out
