"""A gateway with a detokenizer in its process: same text, same ends, and others are used where it is full."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import options
from tests.e2e.test_drain import drain, lives
from tests.support.client import connect, generate, request
from tests.support.stack import Stack
from tests.support.wait import until

OWN, OTHER = "detokenizer-gateway0", "detokenizer-0"
REQUEST = request("Once upon a time", max_tokens=120, ignore_eos=True)
REQUESTS = [request("Once upon a time", max_tokens=120 + more, ignore_eos=True) for more in range(4)]
"""None is the same as another one, which would be computed once."""
RELEASE_TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def stack(model_dir: Path) -> Iterator[Stack]:
    """Its gateway's own detokenizer has two places; there is another one in a process of its own."""
    environ = {"PENSTOCK_GATEWAY_OWN_DETOKENIZER": "true", "PENSTOCK_DETOKENIZER_MAX_SESSIONS": "2"}
    with Stack(*options(model_dir, None, 1, "auto"), "--detokenizer", "1", environ=environ) as running:
        yield running


def ended(stack: Stack, before: int) -> Counter[str]:
    """Count the requests whose ends are logged since, by their detokenizers."""
    ends = [line for line in stack.log[before:] if '"workers"' in line]
    return Counter(name for name in (OWN, OTHER) for line in ends if f"{name} " in line or f'{name}"' in line)


async def test_the_own_one_is_taken_first_and_another_where_it_is_full_and_the_text_is_the_same(
    stack: Stack,
) -> None:
    async with connect(stack.grpc) as stub:
        before = len(stack.log)
        alone = [await generate(stub, each) for each in REQUESTS]
        await until(lambda: ended(stack, before).total() == len(REQUESTS))
        assert ended(stack, before)[OWN]  # not all: heartbeats may be late to say that it has room again
        before = len(stack.log)
        together = await asyncio.gather(*(generate(stub, each) for each in REQUESTS))
        await until(lambda: ended(stack, before).total() == len(REQUESTS))
    assert ended(stack, before)[OTHER]
    for one, same in zip(alone, together, strict=True):
        assert (one.outcome, same.outcome) == ("finished", "finished")
        assert (one.ids, one.text) == (same.ids, same.text)


async def test_a_cancel_reaches_it(stack: Stack) -> None:
    async with connect(stack.grpc) as stub:
        call = stub.Generate(request("Once upon a time", max_tokens=400, ignore_eos=True))
        seen = 0
        async for event in call:
            seen += len(event.text.token_ids)
            if seen >= 10:
                break
        call.cancel()
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def test_it_is_a_whole_instance_of_the_gateway_s_process(stack: Stack) -> None:
    (gateway,) = stack.instances("gateway")
    assert gateway.inner == OWN
    assert [instance.id for instance in stack.instances("detokenizer")] == [OTHER]
    bus = await stack.connect("somebody", user=OWN)
    await bus.close()


async def test_a_drain_of_it_is_one_of_the_gateway_and_a_stream_finishes_first(stack: Stack) -> None:
    async with connect(stack.grpc) as stub:
        expected = await generate(stub, REQUEST)
    before = lives(stack, "gateway-0")
    began = asyncio.Event()

    async def stream() -> tuple[list[int], str]:
        async with connect(stack.grpc) as stub:
            ids: list[int] = []
            text = ""
            async for event in stub.Generate(REQUEST):
                ids += event.text.token_ids
                text += event.text.text
                if ids:
                    began.set()
            return ids, text

    streaming = asyncio.create_task(stream())
    await asyncio.wait(
        [streaming, waited := asyncio.create_task(began.wait())], return_when="FIRST_COMPLETED"
    )
    waited.cancel()
    code, said = await drain(stack, OWN)
    assert code == 0, said
    assert await streaming == (expected.ids, expected.text)
    await until(lambda: lives(stack, "gateway-0") > before, timeout_s=60)
    async with connect(stack.grpc) as stub:
        fresh = await generate(stub, REQUEST)
    assert fresh.text == expected.text
