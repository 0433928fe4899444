"""A model that was pulled, served by its name."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.test_ways_in import run
from tests.support.client import connect, generate, request
from tests.support.oracle import Oracle
from tests.support.stack import Stack

SMALL = ("--corpus", "none", "--retriever", "0", "--draft", "none")
IDS = [5, 6, 7] * 10


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
