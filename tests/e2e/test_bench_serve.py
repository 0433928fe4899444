"""`penstock bench serve` against a whole stack: its page's commands, and what the server itself says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from services.cli.bench.ab_side import AbSide
from tests.e2e.conftest import GetStack
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.stack import Stack

PAGE = (REPOSITORY / "services" / "cli" / "bench" / "README.md").read_text("utf-8")
COMMANDS = re.findall(r"^\.venv/bin/penstock (bench serve .*)$", PAGE, re.MULTILINE)
SHORT = ("--duration", "1", "--deadline", "60")
TRACE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 100, "hash_ids": [0, 1, 2]},
    {"timestamp": 900, "input_length": 1400, "output_length": 200, "hash_ids": [0, 1, 3]},
]
SESSION = {
    "id": "one",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "s", "in": 1280, "out": 100, "hash_ids": [*range(20)], "api_time": 1.0},
        {
            "t": 1.1,
            "type": "subagent",
            "agent_id": "a",
            "status": "completed",
            "requests": [
                {"t": 1.2, "type": "n", "in": 640, "out": 100, "hash_ids": [*range(90, 100)], "api_time": 0.5}
            ],
        },
        {"t": 2.0, "type": "s", "in": 1600, "out": 100, "hash_ids": [*range(25)], "api_time": 1.0},
    ],
}
CHATS = [{"turns": ["Once upon a time", "What then?"]}, {"prompt": "There was a"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page's commands name."""
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, TRACE)))
    (tmp_path / "sessions.jsonl").write_text(json.dumps(SESSION))
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, CHATS)))
    (tmp_path / "prices.toml").write_text("output_per_million = 2.0\ncurrency = 'EUR'\n")
    return tmp_path


async def bench(stack: Stack, folder: Path, *words: str) -> tuple[int, str]:
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


@pytest.mark.thorough(but="bench serve --concurrency 4 --input-tokens 128 --output-tokens 32")
@pytest.mark.parametrize("command", COMMANDS)
async def test_the_page_s_commands_run(get_stack: GetStack, folder: Path, command: str) -> None:
    """Exit code 1 is a missed objective, on a machine that is busy with other tests."""
    stack = get_stack()
    words = shlex.split(
        command.replace("http://127.0.0.1:8000", f"http://{stack.http.removeprefix('http://')}")
    )
    code, said = await bench(stack, folder, *words, *SHORT)
    assert code in (0, 1), said
    assert re.search(r"^ttft +\d+ ", said, re.MULTILINE), said
    assert ("missed" in said) == (code == 1), said
    await stack.until_idle()


@pytest.mark.thorough
async def test_the_page_s_comparison_runs(get_stack: GetStack, folder: Path) -> None:
    stack = get_stack()
    command, *of_stacks = re.findall(r"^\.venv/bin/penstock (bench ab .*)$", PAGE, re.MULTILINE)
    assert [AbSide.read(words[2]).up is not None for words in map(shlex.split, of_stacks)] == [
        True,
        True,
    ]
    http = f"http://{stack.http.removeprefix('http://')}"
    words = shlex.split(command.replace("http://127.0.0.1:8000", http).replace("127.0.0.1:50051", stack.grpc))
    code, said = await bench(stack, folder, *words, "--duration", "0.5")
    assert code == 0, said
    assert re.search(
        r"^(B is (faster|slower): its|no difference shown at 6 pairs: B's) ttft_p50", said, re.MULTILINE
    )
    described = json.loads((folder / "ab.json").read_text())
    assert [len(described["sides"][side]["values"]) for side in "AB"] == [6, 6]
    options = [described["sides"][side]["options"] for side in "AB"]
    assert options[0][:2] == ["--grpc", stack.grpc]


async def report(stack: Stack, folder: Path, *words: str) -> dict[str, Any]:
    code, said = await bench(stack, folder, "bench", "serve", "--json", "out.json", "--rows", *words)
    assert code == 0, said
    described: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return described


@pytest.mark.thorough(but="grpc")
@pytest.mark.parametrize("http", [False, True], ids=["grpc", "http"])
async def test_what_the_client_saw_agrees_with_what_the_server_says(
    get_stack: GetStack, folder: Path, http: bool
) -> None:
    """Each call took its client at least what the gateway's timeline says, and has the tokens asked for."""
    stack = get_stack()
    where = ("--url", f"http://{stack.http.removeprefix('http://')}") if http else ()
    where = (*where, "--interface", "completions")  # the model has no chat template
    options = ("--requests", "6", "--input-tokens", "64", "--output-tokens", "12", "--ignore-eos")
    described = await report(stack, folder, *where, *options, "--duration", "60")
    calls = described["calls"]
    assert len(calls) == described["summary"]["calls"] == 6
    assert described["target"]["counted"]
    for call in calls:
        assert call["outcome"] == "finished"
        assert call["facts"]["completion_tokens"] == 12
        assert 40 <= call["facts"]["prompt_tokens"] <= 90  # a word more or less, and a template
        spent_ms = 1e3 * (call["ended_s"] - call["sent_s"])
        assert sum(call["facts"]["phases_ms"].values()) <= spent_ms + 1.0  # two clocks
    assert described["summary"]["token_origins"]["output_decoded"] > 0
    assert described["summary"]["phases_ms"]["decode"]["count"] == 6


@pytest.mark.thorough
async def test_the_same_seed_asks_the_same_and_processes_share_it(get_stack: GetStack, folder: Path) -> None:
    stack = get_stack()
    options = ("--requests", "8", "--rate", "20", "--input-tokens", "20-80", "--output-tokens", "4")
    alone = await report(stack, folder, *options, "--seed", "3")
    shared = await report(stack, folder, *options, "--seed", "3", "--processes", "2")
    other = await report(stack, folder, *options, "--seed", "4")

    def plan(described: dict[str, Any]) -> list[tuple[float, int, int]]:
        return sorted((round(c["intended_s"], 9), c["number"], c["chars"]) for c in described["calls"])

    assert len(plan(alone)) == 8
    assert plan(alone) == plan(shared) != plan(other)


@pytest.mark.thorough
async def test_clients_that_do_not_behave_leave_nothing_behind(get_stack: GetStack, folder: Path) -> None:
    stack = get_stack()
    conducts = ("--cancel", "20%@2", "--disconnect", "20%@0", "--hurried", "20%@5", "--oversized", "20%")
    slow = ("--schema", "20%@20")

    described = await report(
        stack,
        folder,
        *conducts,
        *slow,
        "--requests",
        "24",
        "--rate",
        "50",
        "--output-tokens",
        "200",
        "--seed",
        "2",
    )
    ends = {(end["conduct"], end["outcome"]) for end in described["summary"]["ends"]}
    assert {conduct for conduct, _ in ends} == {"cancel", "disconnect", "hurried", "oversized", "schema"}
    assert ("oversized", "refused") in ends
    assert described["summary"]["rates"]["errors"] == 0
    await stack.until_idle()


async def test_a_server_that_is_not_there_is_said(get_stack: GetStack, folder: Path) -> None:
    code, said = await bench(get_stack(), folder, "bench", "serve", "--url", "http://127.0.0.1:9")
    assert code == 1
    assert said.startswith("penstock bench serve: connection: ClientConnectorError")
