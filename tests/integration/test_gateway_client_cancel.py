"""A request is ended by its id, from another call than its own and through any gateway."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.session.client_cancels import MAX_REQUEST_ID_CHARS
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.messages import CancelAck, ClientCancel
from tests.integration.gateway_peers import GATEWAY, Answer, Running, ask, fleet, gateway
from tests.support.client import generate
from tests.support.wait import until


async def cancel(running: Running, request_id: str) -> bool:
    response = await running.stub.Cancel(pb.CancelRequest(request_id=request_id))
    return bool(response.found)


async def test_a_request_that_is_cancelled_by_its_id_ends_as_cancelled_and_holds_nothing(
    nats_url: str,
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()
        assert await cancel(running, envelope.request_id)
        answer = await stream
        await until(lambda: not running.registry.audit().held)
        assert (answer.outcome, answer.ends) == ("cancelled", 1)
        assert answer.status is grpc.StatusCode.CANCELLED
        assert set(peers.cancels()) == {"decode-0", "prefill-0", "detokenizer-0"}


async def test_two_cancels_at_once_make_one_end(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()
        found = await asyncio.gather(*(cancel(running, envelope.request_id) for _ in range(2)))
        answer = await stream
        assert any(found)
        assert (answer.outcome, answer.ends) == ("cancelled", 1)


async def test_a_late_cancel_finds_nothing(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, ask(max_tokens=1)))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, prefill.prompt_len, "x", finish="length")
        assert (await stream).outcome == "finished"
        await until(lambda: not running.registry.audit().held)
        assert not await cancel(running, envelope.request_id)


async def test_a_request_of_another_gateway_is_cancelled_there(nats_url: str) -> None:
    asked = []

    def owner(message: object) -> Answer:
        asked.append(message)
        return CancelAck(True, "")

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        (await peers.add("gateway", 1)).answers = owner
        await running.knows("gateway", 1)
        assert await cancel(running, "gateway-1.abc")
    assert asked == [ClientCancel("")]


async def test_another_gateways_client_ends_a_request_of_its_own_tenant_only(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()

        async def forwarded(tenant: str) -> object:
            deadline = Deadline.after(60.0)
            about = peers.bus.envelope(envelope.request_id, deadline=deadline)
            return await peers.bus.ask(inbox("gateway", GATEWAY), ClientCancel(tenant), about, deadline)

        assert await forwarded("somebody else") == CancelAck(False, "")
        assert not stream.done()
        assert await forwarded("") == CancelAck(True, "")
        assert (await stream).outcome == "cancelled"


@pytest.mark.parametrize("request_id", ["", "x" * (MAX_REQUEST_ID_CHARS + 1)])
async def test_an_id_that_can_be_none_is_an_invalid_argument(nats_url: str, request_id: str) -> None:
    async with gateway(nats_url) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cancel(running, request_id)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_id_that_nobody_has_is_not_found(nats_url: str) -> None:
    async with gateway(nats_url) as running:
        assert not await cancel(running, "x" * MAX_REQUEST_ID_CHARS)
        assert not await cancel(running, f"{GATEWAY}.000000000000")
