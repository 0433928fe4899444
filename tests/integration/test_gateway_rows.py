"""Rows that go to their clients without Python, and the same rows through it: one answer, counted alike."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway import context
from services.gateway.http.completions import call
from services.gateway.rows.stream_table import StreamTable, has_stream_table
from services.gateway.scope.token_log import TokenLog
from shared.bus.subjects import inbox
from shared.http2.native_codec import has_codec
from shared.messages import Mark, Text
from shared.sampling.parameters import TokenLogprob
from tests.integration.gateway_peers import GATEWAY, Fleet, Running, ask, fleet, gateway
from tests.integration.http_edge import TEXT
from tests.support.http import http_client
from tests.support.metric import total
from tests.support.wait import until

pytestmark = pytest.mark.skipif(
    not (has_stream_table() and has_codec()), reason="the table of rows was not built, or HTTP/2's codec"
)

TEXTS = (" word", "ä", "\u20ac\u2028", "\U0001f600", '"\\\n\0', "")
ROWS = 40
FIRST_PLAIN = 12
"""The rows from here on are plain: those before prove the route."""
COUNTED = (
    "penstock_inter_token_latency_seconds_count",
    "penstock_generation_tokens_total",
    "penstock_prompt_tokens_total",
    "penstock_dropped_messages_total",
    "penstock_stale_messages_total",
)
Step = tuple[Text, int]
"""A message, and how many of its rows change what the client has."""


@dataclass(slots=True)
class Told:
    """Hold what a client got, and what the gateway counted of it."""

    parts: list[bytes] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    taken: int = 0
    """The rows that the table wrote."""


def text(request_id: str, position: int, ids: tuple[int, ...], said: str, **columns: Any) -> Text:
    usual = {"finish": ("",), "logprobs": ((),), "marks": ((),), "epochs": (1,)} | columns
    return Text(request_ids=(request_id,), positions=(position,), token_ids=(ids,), texts=(said,), **usual)


def script(request_id: str, prompt_tokens: int) -> list[Step]:
    """Rows of an answer, most of them plain, with what is dropped among them; the last one ends it."""
    rng, position, steps = random.Random(11), prompt_tokens, list[Step]()
    for number in range(ROWS):
        ids = tuple(rng.choice((0, 1, 200, 70_000)) for _ in range(rng.choice((1, 1, 3))))
        columns: dict[str, Any] = {}
        if number == FIRST_PLAIN + 5:
            columns["marks"] = ((Mark("count:draft_proposed", 3),),)
        if number == FIRST_PLAIN + 9:
            steps.append((text(request_id, position - 1, (1,), "again"), 0))
            steps.append((text(request_id, position, (1,), "stale", epochs=(7,)), 0))
            steps.append((text("gateway-t.nobody", position, ids, "lost"), 0))
        if number == ROWS - 1:
            columns["finish"] = ("stop",)
        said = rng.choice(TEXTS) if 0 < number < ROWS - 1 else "x"
        steps.append((text(request_id, position, ids, said, **columns), len(ids)))
        position += len(ids)
    return steps


async def play(peers: Fleet, running: Running, told: Told, read: Callable[[], Awaitable[bytes]]) -> None:
    """Send the script, each message once what came before is read or has been dropped."""
    envelope, prefill = await peers.placed()
    session = running.registry.live_sessions(1)[0]
    log = session.state.log
    for message, tokens in script(envelope.request_id, prefill.prompt_len):
        wanted, drops = len(log.ids) + tokens, _drops() + (tokens == 0)
        await peers.bus.publish(inbox("gateway", GATEWAY), message)
        await until(partial(_has_come, log, wanted, drops))
        if tokens == 0:
            continue
        told.parts.append(await read())
    told.state = {
        "epoch_tokens": session.state.epoch_tokens,
        "ids": list(log.ids),
        "chars": log.emitted_chars,
        "texts": log.kept_text,
        "finish": session.state.finish,
    }


def _drops() -> float:
    return total("penstock_dropped_messages_total") + total("penstock_stale_messages_total")


def _has_come(log: TokenLog, tokens: int, drops: float) -> bool:
    return len(log.ids) == tokens and _drops() >= drops


@asynccontextmanager
async def running_gateway(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, told: Told, *, native: bool, **options: object
) -> AsyncIterator[tuple[Fleet, Running]]:
    monkeypatch.setattr(context, "has_stream_table", lambda: native)
    take = StreamTable.take

    def counting(self: StreamTable, data: bytes, *args: Any, **named: Any) -> Sequence[int] | None:
        left = take(self, data, *args, **named)
        told.taken += left == []
        return left

    monkeypatch.setattr(StreamTable, "take", counting)
    async with fleet(nats_url) as peers, gateway(nats_url, **options) as running:
        before = {name: total(name) for name in COUNTED}
        yield peers, running
        await until(lambda: not running.registry.has_sessions())
        told.counts = {name: total(name) - before[name] for name in COUNTED}
        told.state["slots"] = sum(slot.tokens for slot in running.context.latencies.slots())
        told.state["gaps"] = sum(slot.inter_token.total() for slot in running.context.latencies.slots())
        rows = running.context.rows
        assert (rows is not None) == native
        assert not rows


async def by_grpc(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, *, native: bool, server: str = "native"
) -> Told:
    told = Told()
    options: dict[str, Any] = {"native": native, "grpc_server": server}
    async with running_gateway(nats_url, monkeypatch, told, **options) as (peers, running):
        events = aiter(running.stub.Generate(ask("hello", seed=9, max_tokens=500)))

        async def read() -> bytes:
            while True:
                event: pb.GenerateEvent = await anext(events)
                if event.HasField("text"):
                    return event.SerializeToString()

        await play(peers, running, told, read)
        (end,) = [event.end async for event in events]
        told.parts.append(pb.Usage(**_counts(end.usage)).SerializeToString())
    return told


def _counts(usage: pb.Usage) -> dict[str, int]:
    return {name.name: value for name, value in usage.ListFields()}


async def by_http(nats_url: str, monkeypatch: pytest.MonkeyPatch, *, native: bool, **penstock: Any) -> Told:
    told = Told()
    async with (
        running_gateway(nats_url, monkeypatch, told, native=native) as (peers, running),
        http_client(running.http.address) as client,
    ):
        body = {"prompt": "hello", "seed": 9, "max_tokens": 500, "stream": True, "model": "test-model"}
        asked = asyncio.create_task(client.post(TEXT, json={**body, **penstock}))
        buffer = bytearray()

        async def read() -> bytes:
            """Wait until all text so far has come."""
            response = await asked
            for session in running.registry.live_sessions(1):
                while _chars(buffer) < session.state.log.emitted_chars:
                    buffer.extend(await response.content.readany())
            return b""

        await play(peers, running, told, read)
        async with await asked as response:
            buffer += await response.content.read()
        told.parts.append(_unnamed(bytes(buffer)))
    return told


def _chars(buffer: bytes | bytearray) -> int:
    found = 0
    for line in bytes(buffer).split(b"\n\n")[:-1]:
        data = line[line.index(b"data: ") + 6 :]
        if data != b"[DONE]":
            found += sum(len(choice.get("text", "")) for choice in json.loads(data)["choices"])
    return found


def _unnamed(body: bytes) -> bytes:
    """Leave out what no two answers have alike: the id, when it was, and the token of the stream."""
    body = re.sub(rb'"id": "[^"]*"', b'"id": ""', body)
    body = re.sub(rb'"created": \d+', b'"created": 0', body)
    return re.sub(rb"\nid: .*~(\d+~\d+)\n", rb"\nid: \1\n", b"\n" + body)


async def test_a_call_of_grpc_gets_the_same_bytes_and_is_counted_the_same(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = await by_grpc(nats_url, monkeypatch, native=True)
    python = await by_grpc(nats_url, monkeypatch, native=False)
    assert native.taken > ROWS - FIRST_PLAIN - 5
    assert python.taken == 0
    assert native.parts == python.parts
    assert native.counts == python.counts
    assert native.state == python.state


async def test_grpcio_writes_all_rows_itself(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native = await by_grpc(nats_url, monkeypatch, native=True)
    other = await by_grpc(nats_url, monkeypatch, native=True, server="grpcio")
    assert other.taken == 0
    assert native.parts == other.parts
    assert native.state == other.state


@pytest.mark.parametrize("penstock", [{}, {"penstock": {"resumable": True}}], ids=["plain", "resumable"])
async def test_an_event_stream_gets_the_same_bytes_and_is_counted_the_same(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, penstock: dict[str, Any]
) -> None:
    native = await by_http(nats_url, monkeypatch, native=True, **penstock)
    python = await by_http(nats_url, monkeypatch, native=False, **penstock)
    assert native.taken > ROWS - FIRST_PLAIN - 5
    assert native.parts == python.parts
    assert native.counts == python.counts
    assert native.state == python.state


async def test_a_body_of_an_unknown_aiohttp_is_written_by_it(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = await by_http(nats_url, monkeypatch, native=True)
    monkeypatch.setattr(call, "MORE_THAN_CHUNKS", (*call.MORE_THAN_CHUNKS, "of_another_version"))
    other = await by_http(nats_url, monkeypatch, native=True)
    assert native.parts == other.parts
    assert native.state == other.state


async def test_rows_with_log_probabilities_are_none_of_the_table(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    async with running_gateway(nats_url, monkeypatch, told, native=True) as (peers, running):
        call = running.stub.Generate(ask("hello", seed=9, max_tokens=500, logprobs=0))
        envelope, prefill = await peers.placed()
        scores = ((TokenLogprob(5, -0.5, ()),),)
        for number in range(20):
            row = text(envelope.request_id, prefill.prompt_len + number, (5,), "a", logprobs=scores)
            await peers.bus.publish(inbox("gateway", GATEWAY), row)
        last = text(
            envelope.request_id, prefill.prompt_len + 20, (5,), "a", finish=("stop",), logprobs=scores
        )
        await peers.bus.publish(inbox("gateway", GATEWAY), last)
        got = [event async for event in call]
    assert sum(len(event.text.logprobs) for event in got) == 21
    assert told.taken == 0
