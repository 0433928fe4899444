"""A stack with API keys: its page's commands, and tenants that share no KV."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from tests.e2e.conftest import options
from tests.e2e.test_closed_bus import command_line
from tests.e2e.test_ways_in import penstock
from tests.support.client import Answer, connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.stack import Stack, metrics_of

COMMAND_TIMEOUT_S = 100
PROMPT = list(range(40, 120))
"""Five blocks."""
SECRETS = {"one": new_api_key(), "another": new_api_key(), "rival": new_api_key()}
TENANTS = {"one": "acme", "another": "acme", "rival": "rival"}


@pytest.fixture(scope="module")
def stack(model_dir: Path, draft_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    entries = [ApiKey(name, TENANTS[name], hash_api_key(secret)) for name, secret in SECRETS.items()]
    file.write_text("\n".join(map(describe_api_key, entries)))
    environ = {"PENSTOCK_GATEWAY_API_KEYS": str(file)}
    with Stack(*options(model_dir, draft_dir, 1, "nats"), "--log-level", "debug", environ=environ) as stack:
        yield stack


OTHER_PROMPT = list(range(200, 220))


async def answer_for(stack: Stack, name: str, prompt: list[int], *claims: tuple[str, str]) -> Answer:
    metadata = (("authorization", f"Bearer {SECRETS[name]}"), *claims)
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request(prompt, max_tokens=8), metadata=metadata)
    assert answer.outcome == "finished", answer.details
    return answer


def cached(answer: Answer) -> int:
    assert answer.end is not None
    return answer.end.usage.cached_tokens


PLACES = 2
"""A prompt is computed at the prefill worker or at the decode worker: this many answers warm both."""


async def warm_answer_for(stack: Stack, name: str) -> Answer:
    """Return the first answer whose prompt was cached, of as many as must have one."""
    for _ in range(PLACES):
        answer = await answer_for(stack, name, PROMPT)
        if cached(answer):
            break
    return answer


async def test_a_prompt_of_one_tenant_is_warm_for_it_alone(stack: Stack) -> None:
    first = await answer_for(stack, "one", PROMPT)
    again = await warm_answer_for(stack, "one")
    same_tenant = await warm_answer_for(stack, "another")
    foreign = await answer_for(stack, "rival", PROMPT, ("tenant", "acme"))
    own = await warm_answer_for(stack, "rival")
    assert (cached(first), cached(foreign)) == (0, 0)
    assert min(cached(again), cached(same_tenant), cached(own)) >= 64
    assert first.ids == again.ids == same_tenant.ids == foreign.ids == own.ids


async def test_no_key_is_in_any_log_metric_or_command_line_of_a_stack(stack: Stack) -> None:
    await answer_for(stack, "one", OTHER_PROMPT)
    await stack.until_idle()
    _, status = await penstock(stack, "status", "--json")
    _, audit = await penstock(stack, "audit", "--json")
    shown = [*stack.log, status, audit, *map(metrics_of, stack.instances())]
    shown += [command_line(pid) for pid in Path("/proc").iterdir() if pid.name.isdigit()]  # noqa: ASYNC240 - a test
    told = "\n".join(shown)
    assert "request_ended" in told
    for secret in SECRETS.values():
        assert secret.removeprefix("psk_") not in told
        assert hash_api_key(secret).removeprefix("sha256:") not in told


def commands_of(page: str, section: str) -> list[str]:
    """The commands that the page of a service prints under a heading."""
    text = (
        (REPOSITORY / "services" / page / "README.md")
        .read_text()
        .split(f"## {section}\n", 1)[1]
        .split("\n## ", 1)[0]
    )
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line.split(" #")[0].strip() for line in block.splitlines()]


async def test_the_page_makes_a_key_starts_a_stack_and_asks_as_printed(
    model_dir: Path, draft_dir: Path, tmp_path: Path
) -> None:
    export, keys_new, up, ask = commands_of("gateway", "Keys and tenants")
    variable, file = export.removeprefix("export ").split("=")
    (tmp_path / ".venv").symlink_to(sys.prefix)  # of whoever runs the tests
    environ = {variable: str(tmp_path / file), "PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}

    async def run(command: str) -> tuple[int, str]:
        done = await asyncio.to_thread(
            subprocess.run, command, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True,
            timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    code, output = await run(keys_new)
    assert code == 0, output
    assert up == ".venv/bin/penstock up"
    with Stack(
        *options(model_dir, draft_dir, 1, "nats"), environ=environ | {"OMP_NUM_THREADS": "1"}
    ) as stack:
        where = f" --state-dir {shlex.quote(str(stack.state_dir))} --max-tokens 8"
        code, output = await run(ask + where)
        assert code == 0, output
        without, _ = ask.split(" --api-key-file")
        code, output = await run(without + where)
    assert code == 1
    assert "this gateway wants an API key" in output
