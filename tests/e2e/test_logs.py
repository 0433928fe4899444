"""Invariant 9: prompts, completions and retrieved text are never logged above debug level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import GetStack, options
from tests.support.client import connect, generate, request
from tests.support.stack import Stack
from tests.support.wait import until

SECRET = "xylophone-marmalade"


async def test_neither_prompt_nor_completion_is_in_any_log(get_stack: GetStack) -> None:
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request(f"The {SECRET} said", max_tokens=40, temperature=0.0))
        refused = await generate(stub, request(f"{SECRET} " * 2000, max_tokens=4))
    assert answer.outcome == "finished"
    assert refused.outcome == "failed"
    log = "\n".join(stack.log)
    assert SECRET not in log
    assert answer.text.strip()[:30] not in log


@pytest.mark.thorough
async def test_at_debug_level_each_service_has_a_line_for_a_request(model_dir: Path, draft_dir: Path) -> None:
    """The ends of all of them are joined by the id; the gateway's names everybody."""
    environ = {"PENSTOCK_LOG_LEVEL": "debug", "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0"}
    chosen = options(model_dir, draft_dir, 1, "nats")
    with Stack(*chosen, "--retriever", "0", "--log-format", "json", environ=environ) as stack:
        async with connect(stack.grpc) as stub:
            answer = await generate(stub, request("The line said", max_tokens=60, temperature=0.0))
        assert answer.prompt is not None
        name = answer.prompt.request_id

        def lines(event: str) -> list[dict[str, Any]]:
            found = [json.loads(line) for line in list(stack.log) if f'"{event}"' in line]
            return [line for line in found if line["request_id"] == name]

        await until(lambda: lines("request_ended"))
        (ended,) = lines("request_ended")
        taken = lines("request_taken")
    assert {line["instance"] for line in taken} == set(ended["workers"].split())
    roles = {line["role"] for line in taken}
    assert {"tokenizer", "prefill", "decode", "detokenizer", "speculator"} == roles
    traces = {line["trace"].split("-")[1] for line in taken if line["role"] != "speculator"}
    assert traces == {ended["trace_id"]}
