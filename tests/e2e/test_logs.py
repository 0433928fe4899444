"""Invariant 9: prompts, completions and retrieved text are never logged above debug level."""

from __future__ import annotations

from tests.e2e.conftest import GetStack
from tests.support.client import connect, generate, request

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
