"""`penstock capacity` with a whole stack: what it says of itself under load, and the plan made of that."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from services.cli.capacity.measured_comparison import COMPARED
from services.cli.capacity.profile_file import read_profile
from tests.e2e.conftest import GetStack
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.stack import Stack


async def penstock(stack: Stack, folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and what was said."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PENSTOCK_GRPC": stack.grpc}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *words),
        cwd=folder,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    ended = await ended_program(process)
    return ended.code, ended.out


@pytest.mark.thorough
async def test_a_stack_under_load_is_profiled_and_its_load_predicted(
    get_stack: GetStack, tmp_path: Path
) -> None:
    """A transport makes all prompts those of prefill workers; a load runs before and beyond the watch."""
    stack = get_stack(1, True, "shm")
    load = ("--rate", "3", "--input-tokens", "40", "--output-tokens", "40", "--duration", "12")
    measuring = asyncio.create_task(penstock(stack, tmp_path, "bench", "serve", *load, "--json", "load.json"))
    try:
        where = ("--state-dir", str(stack.state_dir))
        code, said = await penstock(
            stack, tmp_path, "capacity", "profile", "--out", "stack.json", "--watch", "8", *where
        )
    finally:
        measured_code, measured = await measuring
    assert code == 0, said
    assert measured_code == 0, measured
    profile = read_profile(tmp_path / "stack.json")
    assert profile.decode.slots > 0
    assert profile.gateway.cpu_ms > 0
    plan = (
        "--rate",
        "3",
        "--input-tokens",
        "40",
        "--output-tokens",
        "40",
        "--measured",
        "load.json",
        "--json",
    )
    code, said = await penstock(stack, tmp_path, "capacity", "plan", "--profile", "stack.json", *plan)
    assert code == 0, said
    answer = json.loads(said)
    figures = {row["figure"] for row in answer["measured"]}
    assert {f"{quantity}_p50" for quantity in COMPARED} <= figures
    await stack.until_idle()


async def test_a_stack_that_nobody_asks_is_told_what_is_not_known(
    get_stack: GetStack, tmp_path: Path
) -> None:
    stack = get_stack(1, True, "shm")
    await stack.until_idle()
    where = ("--state-dir", str(stack.state_dir), "--watch", "0.5")
    code, said = await penstock(stack, tmp_path, "capacity", "profile", "--out", "stack.json", *where)
    assert code == 1
    assert "not known: gateway.cpu_ms; let requests end meanwhile" in said
    code, said = await penstock(stack, tmp_path, "capacity", "plan", "--profile", "stack.json", "--rate", "1")
    assert code == 2
    assert "stack.json lacks gateway.cpu_ms" in said
