"""What a newcomer types: the page's client, `penstock ask | status | audit`, the demo."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from shared.engine.native.library import library
from shared.process.niceness import COMPUTING_NICE, PASSING_NICE
from shared.roles import ENGINE_ROLES
from tests.e2e.conftest import GetStack
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.stack import Stack

LOWEST_NICE = 19


async def run(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output of a Python program started in the repository."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    ended = await ended_program(process)
    return ended.code, ended.out


async def penstock(stack: Stack, *arguments: str) -> tuple[int, str]:
    return await run("-m", "services.cli", *arguments, "--state-dir", str(stack.state_dir))


GATEWAY_PAGE = REPOSITORY / "services" / "gateway" / "README.md"


async def test_the_client_on_the_gateway_s_page_runs_as_printed(get_stack: GetStack) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GATEWAY_PAGE.read_text(), re.DOTALL)
    (client,) = [block for block in blocks if "import grpc" in block]
    assert len(client.splitlines()) <= 20
    code, output = await run("-c", client.replace("127.0.0.1:50051", get_stack().grpc))
    assert code == 0
    assert re.search(r"prompt tokens, seed 7\]", output)
    assert re.search(r"\[first token after [\d.]+ ms\]", output)


async def test_ask_streams_json_events_that_end_with_outcome_usage_and_timeline(get_stack: GetStack) -> None:
    code, output = await penstock(
        get_stack(), "ask", "Once upon a time", "--temperature", "0", "--max-tokens", "12", "--json"
    )
    assert code == 0
    events = [json.loads(line) for line in output.splitlines()]
    texts = [event for event in events if event["event"] == "text"]
    assert sum(len(event["token_ids"]) for event in texts) == 12
    assert events[-1]["outcome"] == "finished"
    assert events[-1]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert events[-1]["timeline"]["phases"]


def test_computing_gives_way_to_what_passes_things_on_and_that_to_the_gateway(get_stack: GetStack) -> None:
    stack = get_stack(3, True, "nats")
    loops = {row.id: os.getpriority(os.PRIO_PROCESS, row.pid) for row in stack.instances()}
    first = loops["gateway-0"]
    assert {name: nice - first for name, nice in loops.items()} == {
        name: 0 if name == "gateway-0" else PASSING_NICE for name in loops
    }
    behind = {
        row.id: max(
            os.getpriority(os.PRIO_PROCESS, int(task.name))
            for task in Path(f"/proc/{row.pid}/task").iterdir()
        )
        - first
        for row in stack.instances()
    }
    engines = {row.id for row in stack.instances() if row.role in ENGINE_ROLES}
    below = min(COMPUTING_NICE, LOWEST_NICE - first)  # of whoever runs the tests at a low priority
    assert {name: behind[name] for name in engines} == dict.fromkeys(engines, below)
    assert {behind[name] - loops[name] + first for name in loops.keys() - engines} == {0}


def test_every_service_of_a_stack_starts_from_imports_that_were_done_before(get_stack: GetStack) -> None:
    """A forked process keeps the memory of its parent's environment: nothing of its own is there."""
    stack = get_stack(3, True, "nats")
    marks = {row.id: Path(f"/proc/{row.pid}/environ").read_bytes() for row in stack.instances()}
    assert [name for name, environ in marks.items() if b"PENSTOCK_INSTANCE=" in environ] == []


@pytest.mark.skipif(library() is None, reason="the kernels were not built, or this CPU cannot run them")
def test_weights_are_mapped_from_one_file_by_all_who_have_the_model(get_stack: GetStack) -> None:
    def files(role: str) -> list[tuple[str, ...]]:
        """Permissions, device, inode and name of what each worker of the role has mapped."""
        maps = [Path(f"/proc/{row.pid}/maps").read_text() for row in stack.instances() if row.role == role]
        return [
            (*line.split()[1:2], *line.split()[3:6])
            for text in maps
            for line in text.splitlines()
            if "/penstock/weights/" in line
        ]

    stack = get_stack(3, True, "nats")
    (of_prefill,) = files("prefill")
    assert of_prefill[0] == "r--s"
    assert files("decode") == [of_prefill] * 3


@pytest.mark.thorough(but="json-schema")
@pytest.mark.parametrize(
    ("option", "value", "pattern"),
    [
        ("--regex", "(Lily|Tom) has [0-9]{2} cats", "(Lily|Tom) has [0-9]{2} cats"),
        ("--grammar", 'start: "go" | "stop"', "go|stop"),
        ("--json-schema", '{"type": "boolean"}', "true|false"),
    ],
    ids=["regex", "grammar", "json-schema"],
)
async def test_ask_constrains_the_answer(
    get_stack: GetStack, tmp_path: Path, option: str, value: str, pattern: str
) -> None:
    file = tmp_path / "constraint"
    file.write_text(value)
    for given in (value,) if option == "--regex" else (value, str(file)):
        code, output = await penstock(get_stack(), "ask", "Once", option, given, "--json")
        events = [json.loads(line) for line in output.splitlines()]
        assert code == 0, events[-1]
        assert re.fullmatch(pattern, "".join(event["text"] for event in events if event["event"] == "text"))


@pytest.mark.thorough
async def test_ask_says_what_is_wrong_with_a_grammar(get_stack: GetStack) -> None:
    code, output = await penstock(get_stack(), "ask", "Once", "--grammar", "start: missing", "--json")
    assert code == 1
    assert "missing" in json.loads(output.splitlines()[-1])["error"]["message"]


async def test_ask_exits_with_3_when_the_deadline_expires(get_stack: GetStack) -> None:
    code, output = await penstock(
        get_stack(), "ask", "Once", "--max-tokens", "480", "--ignore-eos", "--deadline", "0.06", "--json"
    )
    assert code == 3
    assert json.loads(output.splitlines()[-1])["outcome"] == "expired"


@pytest.mark.thorough
async def test_ask_exits_with_1_when_the_request_is_refused(get_stack: GetStack) -> None:
    code, output = await penstock(get_stack(), "ask", "Once", "--model", "no-such-model", "--json")
    assert code == 1
    assert json.loads(output.splitlines()[-1])["outcome"] == "failed"


@pytest.mark.thorough
async def test_ask_exits_with_2_for_a_usage_error(get_stack: GetStack) -> None:
    code, _ = await penstock(get_stack(), "ask", "Once", "--temperature", "warm")
    assert code == 2


async def test_status_shows_every_instance(get_stack: GetStack) -> None:
    stack = get_stack(3, True, "nats")
    code, output = await penstock(stack, "status", "--json")
    assert code == 0
    for instance in stack.instances():
        assert instance.id in output or instance.role == "nats"


@pytest.mark.thorough
async def test_every_gateway_says_where_it_takes_requests(get_stack: GetStack) -> None:
    stack = get_stack()
    (gateway,) = stack.instances("gateway")
    assert (gateway.grpc, gateway.http) == (stack.grpc, stack.http)
    _, output = await penstock(stack, "status")
    assert f"gateway-0 takes requests at grpc={stack.grpc} http={stack.http}" in output


async def test_raw_text_is_continued_and_a_chat_needs_a_template(get_stack: GetStack) -> None:
    """The model of these tests has none."""
    options = ("--temperature", "0", "--max-tokens", "4")
    raw = await penstock(get_stack(), "ask", "Once upon a time", "--raw", *options)
    assert raw[0] == 0
    assert await penstock(get_stack(), "ask", "Once upon a time", *options) == raw
    assert (await penstock(get_stack(), "ask", "Once upon a time", "--chat", *options))[0] == 1


async def test_audit_of_an_idle_stack_is_zero(get_stack: GetStack) -> None:
    stack = get_stack()
    await stack.until_idle()
    code, _ = await penstock(stack, "audit", "--json")
    assert code == 0


async def test_the_demo_answers_a_question_about_these_documents() -> None:
    code, output = await run("-m", "services.launcher.demo")
    assert code == 0, output
    assert "The default gRPC port of the gateway is 50051." in output
