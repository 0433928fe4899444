"""Clients of the HTTP edge that leave, do not read, or cancel."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from shared.messages import (
    Prefill,
)
from tests.integration.gateway_peers import ask
from tests.integration.http_edge import CHAT, HELLO, edge
from tests.support.client import generate
from tests.support.metric import value
from tests.support.wait import until

ALL_THREE = {"decode-0", "prefill-0", "detokenizer-0"}


MUCH_TEXT = 900_000
"""The text of one row, below what a message on the bus may have; nine of them are more than sockets take."""


@pytest.mark.thorough(but="False")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_take_the_end_of_its_answer_loses_its_connection(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("services.gateway.session.response_relay.WRITE_GRACE_S", 0.2)
    for module in ("call", "event_stream"):
        monkeypatch.setattr(f"services.gateway.http.completions.{module}.FLUSH_TIMEOUT_S", 0.3)
    # A stream is written until its deadline; a whole answer has to be there before it, on any machine.
    deadline_ms = 6_000 if stream else 60_000
    body = {"prompt": "hello", "stream": stream, "penstock": {"deadline_ms": deadline_ms}}
    data = json.dumps(body).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data)
    )
    async with edge(nats_url) as here:
        open_before = value("penstock_http_connections")
        host, _, port = here.running.http.address.rpartition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, head + data)
            envelope, _ = await here.peers.placed()
            for number in range(9):
                await here.peers.text(envelope.request_id, 5 + number, "x" * MUCH_TEXT, ids=(7,))
            await here.peers.text(envelope.request_id, 14, "", ids=(), finish="stop")
            assert value("penstock_http_connections") == open_before + 1
            await until(lambda: value("penstock_http_connections") == open_before)
        await here.idle()


@pytest.mark.thorough(but="True")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_dropped_connection_cancels_exactly_the_holders(nats_url: str, stream: bool) -> None:
    async with edge(nats_url) as here:
        asked = here.begin(CHAT, {**HELLO, "stream": stream})
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        asked.cancel()
        await asyncio.wait([asked])
        await here.idle()
        await until(lambda: set(here.peers.cancels()) == ALL_THREE)
    assert {reason for told in here.peers.cancels().values() for _, reason in told} == {"cancelled"}


async def test_a_dropped_connection_ends_all_choices(nats_url: str) -> None:
    async with edge(nats_url) as here:
        asked = here.begin(CHAT, {**HELLO, "n": 3})
        await until(lambda: len(here.peers["prefill-0"].of(Prefill)) == 3)
        asked.cancel()
        await here.idle()


@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
async def test_a_request_is_cancelled_by_its_id_and_ends_as_499(nats_url: str, prefix: str) -> None:
    async with edge(nats_url) as here:
        asked = here.begin(CHAT, HELLO)
        envelope, _ = await here.peers.placed()
        path = f"/v1/requests/{prefix}{envelope.request_id}/cancel"
        cancelled = await here.post(path, {})
        reply = await asked
        await here.idle()
        late = await here.post(path, {})
    assert (cancelled.status, cancelled.body["cancelled"]) == (200, True)
    assert (reply.status, reply.error["code"]) == (499, "cancelled")
    assert reply.headers["x-should-retry"] == "false"
    assert (late.status, late.error["code"]) == (404, "request_not_found")
    assert set(here.peers.cancels()) == ALL_THREE


async def test_a_client_that_does_not_read_is_cancelled(nats_url: str) -> None:
    async with edge(nats_url, max_buffered_tokens=100) as here:
        asked = asyncio.create_task(here.client.post(CHAT, json={**HELLO, "stream": True}))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        async with await asked:  # its head has come; the body is left where it is
            position = 6
            while here.running.registry.audit().held and position < 5_000_000:
                await here.peers.text(envelope.request_id, position, "x" * 10_000, ids=tuple(range(20)))
                position += 20
            await here.idle()
        assert position < 5_000_000
        await until(lambda: set(here.peers.cancels()) == ALL_THREE)


async def test_a_request_over_grpc_and_one_over_http_share_the_room(nats_url: str) -> None:
    async with edge(nats_url, max_sessions=1) as here:
        asked = here.begin(CHAT, HELLO)
        envelope, _ = await here.peers.placed()
        refused = await generate(here.running.stub, ask("hello"))
        await here.peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await asked).status == 200
    assert refused.outcome == "shed"
