"""API keys at a real edge: who comes in, as which tenant, how much, and what a change of their file does."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.keys.rate_limits import KeyLedger
from shared.fairness.share import tenant_digest
from shared.files.api_key_file import ApiKey, KeyLimits, describe_api_key, hash_api_key, new_api_key
from shared.messages import Message, Open, Prefill, Reserve, Tokenize
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import (
    Fleet,
    Running,
    ask,
    default_answer,
    fleet,
    gateway,
)
from tests.support.client import Answer, generate
from tests.support.http import http_client
from tests.support.metric import value
from tests.support.wait import until

REFUSALS = "penstock_api_key_refusals_total"


class Client:
    """A key and what its holder sends."""

    def __init__(self, name: str, tenant: str, *, weight: int = 1, **limits: int) -> None:
        self.secret = new_api_key()
        self.key = ApiKey(name, tenant, hash_api_key(self.secret), KeyLimits(**limits), weight=weight)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.secret}"),)

    async def ask(self, running: Running, message: pb.GenerateRequest | None = None) -> Answer:
        """An answer of at most 128 tokens, which the limits of the tests are made for."""
        message = message or ask("hello", max_tokens=128)
        return await generate(running.stub, message, metadata=self.metadata)

    def ledger(self, running: Running) -> KeyLedger:
        return running.key_gate.keys._accounts[self.key.hash].ledger


def write(file: Path, *clients: Client) -> str:
    """The file in one step, as whoever changes it should."""
    new = file.with_suffix(".new")
    new.write_text("\n".join(describe_api_key(client.key) for client in clients))
    new.replace(file)
    return str(file)


def damage(file: Path, content: str | None) -> None:
    """None: away with it."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content.encode("latin-1"))


async def in_force(running: Running, *clients: Client) -> None:
    """The gateway has noticed by itself that these are the keys now, with their limits."""
    wanted = {client.key.hash: client.key.limits for client in clients}
    accounts = running.key_gate.keys.accounts
    await until(lambda: {one.key_hash: one.ledger.limits for one in accounts()} == wanted)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("services.gateway.keys.keys_in_force.POLL_S", 0.02)
    return tmp_path / "keys.toml"


async def finish(peers: Fleet, call: Awaitable[Answer], epoch: int = 1) -> Answer:
    """Answer the call with one token, the last."""
    task = asyncio.ensure_future(call)
    seen = len(peers["prefill-0"].of(Prefill))
    await until(lambda: len(peers["prefill-0"].of(Prefill)) > seen or task.done())
    if not task.done():
        await peers.text(peers["prefill-0"].of(Prefill)[-1][0].request_id, 5, "a", epoch=epoch, finish="stop")
    return await task


# ---- who comes in -------------------------------------------------------------------------------------

STRANGERS: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "nothing": ((), "no_key"),
    "an empty value": ((("authorization", ""),), "unknown_key"),
    "an empty bearer": ((("authorization", "Bearer "),), "unknown_key"),
    "another scheme": ((("authorization", "Basic c2VjcmV0"),), "unknown_key"),
    "an unknown key": ((("authorization", f"Bearer {new_api_key()}"),), "unknown_key"),
    "two values": ((("authorization", "Bearer a"), ("authorization", "Bearer b")), "unknown_key"),
    "a key of 8 KB": ((("authorization", "Bearer " + "x" * 6000),), "unknown_key"),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_who_shows_no_valid_key_gets_one_terminal_event_that_says_what_to_send(
    nats_url: str, keys: Path, name: str
) -> None:
    metadata, reason = STRANGERS[name]
    before = value(REFUSALS, reason=reason, tenant="")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, Client("a", "t"))) as running:
        answer = await generate(running.stub, pb.GenerateRequest(), metadata=metadata)
        assert running.registry.audit().held == ()
    assert (answer.status, answer.outcome, answer.ends) == (grpc.StatusCode.UNAUTHENTICATED, "failed", 1)
    assert answer.end is not None
    assert (answer.end.error.code, answer.end.error.hop) == ("unauthenticated", "gateway")
    assert "send" in answer.details
    assert value(REFUSALS, reason=reason, tenant="") == before + 1
    assert not peers["tokenizer-0"].got


async def test_a_key_of_a_megabyte_is_refused_by_grpc_and_the_gateway_serves_on(
    nats_url: str, keys: Path
) -> None:
    client = Client("a", "t")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        huge = (("authorization", "Bearer " + "x" * (1 << 20)),)
        assert (
            await generate(running.stub, ask(), metadata=huge)
        ).status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await finish(peers, client.ask(running))).outcome == "finished"


async def test_a_flood_of_wrong_keys_opens_nothing_and_stops_nobody(nats_url: str, keys: Path) -> None:
    client = Client("a", "t")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        call = asyncio.create_task(client.ask(running))
        envelope, _ = await peers.placed()
        for _ in range(4):
            wrong = [(("authorization", f"Bearer {new_api_key()}"),) for _ in range(50)]
            answers = await asyncio.gather(*(generate(running.stub, ask(), metadata=one) for one in wrong))
            assert {answer.status for answer in answers} == {grpc.StatusCode.UNAUTHENTICATED}
        assert len(running.key_gate.keys.accounts()) == 1
        assert [held.request_id for held in running.registry.audit().held] == [envelope.request_id]
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"


async def test_health_and_reflection_need_no_key(nats_url: str, keys: Path) -> None:
    async with fleet(nats_url), gateway(nats_url, api_keys=write(keys, Client("a", "t"))) as running:
        health = health_pb2_grpc.HealthStub(running.channel)
        await health.Check(health_pb2.HealthCheckRequest(service="penstock.v1.Inference"))
        stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        assert [answer async for answer in call]


async def test_without_a_file_everybody_comes_in_as_nobody_in_particular(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        answer = await finish(peers, Client("a", "t").ask(running))
    assert answer.outcome == "finished"
    assert [message.tenant for message in tokenized(peers)] == [""]


# ---- the tenant ---------------------------------------------------------------------------------------


def tokenized(peers: Fleet) -> list[Tokenize]:
    return [message for _, message in peers["tokenizer-0"].of(Tokenize) if isinstance(message, Tokenize)]


async def test_the_tenant_is_that_of_the_key_whatever_the_client_says(nats_url: str, keys: Path) -> None:
    one, other = Client("one", "acme"), Client("other", "rival")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, one, other)) as running:
        for client in (one, other):
            claims = (("tenant", "acme"), ("x-tenant", "acme"), ("penstock-tenant", "acme"))
            call = generate(running.stub, ask("hello"), metadata=client.metadata + claims)
            assert (await finish(peers, call)).outcome == "finished"
    assert [message.tenant for message in tokenized(peers)] == ["acme", "rival"]


async def test_blocks_of_two_tenants_have_different_names_at_every_worker(nats_url: str, keys: Path) -> None:
    one, other = Client("one", "acme"), Client("other", "rival")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, one, other)) as running:
        for client in (one, one, other):
            call = client.ask(running, ask("the same prompt, longer than a block"))
            task = asyncio.create_task(call)
            seen = len(peers["prefill-0"].of(Prefill))
            await until(lambda seen=seen: len(peers["prefill-0"].of(Prefill)) > seen)  # type: ignore[misc]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: running.registry.audit().held == ())
    names = [m.block_hashes for _, m in peers["prefill-0"].of(Prefill) if isinstance(m, Prefill)]
    reserved = [m.block_hashes for _, m in peers["decode-0"].of(Reserve) if isinstance(m, Reserve)]
    assert names[0] == names[1] != names[2]
    assert reserved == names
    assert len(names[0]) >= 32


async def test_workers_hear_whose_a_request_is_by_a_digest_and_what_its_key_weighs(
    nats_url: str, keys: Path
) -> None:
    clients = Client("one", "acme"), Client("two", "acme", weight=3), Client("other", "rival")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, *clients)) as running:
        for client in clients:
            assert (await finish(peers, client.ask(running))).outcome == "finished"
        await until(lambda: running.registry.audit().held == ())
    shares = [m.share for _, m in peers["prefill-0"].of(Prefill) if isinstance(m, Prefill)]
    assert shares == [m.share for _, m in peers["decode-0"].of(Reserve) if isinstance(m, Reserve)]
    assert [share.weight for share in shares] == [1, 3, 1]
    assert shares[0].tenant == shares[1].tenant == tenant_digest("acme", "")
    assert shares[2].tenant == tenant_digest("rival", "")
    assert "acme" not in shares[0].tenant


async def test_one_tenants_line_does_not_keep_another_from_the_next_slot(nats_url: str, keys: Path) -> None:
    heavy, light = Client("heavy", "heavy"), Client("light", "light")
    async with (
        fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers,
        gateway(nats_url, api_keys=write(keys, heavy, light)) as running,
    ):
        decode = await peers.add("decode", capacity=1, live=1)
        await running.knows("decode", 1)
        queue = running.registry._context.admission_queue
        calls = [asyncio.create_task(heavy.ask(running)) for _ in range(6)]
        await until(lambda: len(queue) == 6)

        async def placed(count: int) -> None:
            """One slot has come free, and one more request is where it was."""
            decode.say(live=0)
            await until(lambda: len(decode.of(Reserve)) == count)
            decode.say(live=1)
            await until(lambda: running.fleet.instances("decode")[0].heartbeat.live == 1)

        await placed(1)
        calls.append(asyncio.create_task(light.ask(running, ask("hi", max_tokens=8))))
        await until(lambda: len(queue) == 6)
        for count in range(2, 8):
            await placed(count)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    tenants = [m.share.tenant for _, m in decode.of(Reserve) if isinstance(m, Reserve)]
    assert tenants.index(tenant_digest("light", "")) == 1


async def test_a_client_can_cancel_its_tenants_requests_and_no_others(nats_url: str, keys: Path) -> None:
    one, other = Client("one", "acme"), Client("other", "rival")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, one, other)) as running:
        call = asyncio.create_task(one.ask(running))
        envelope, _ = await peers.placed()
        wanted = pb.CancelRequest(request_id=envelope.request_id)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.Cancel(wanted)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not (await running.stub.Cancel(wanted, metadata=other.metadata)).found
        assert not call.done()
        assert (await running.stub.Cancel(wanted, metadata=one.metadata)).found
        assert (await call).outcome == "cancelled"


# ---- limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"requests_per_min": 1}, "requests_per_min"),
        ({"concurrency": 1}, "concurrency"),
        ({"tokens_per_min": 200}, "tokens_per_min"),
    ],
)
async def test_over_a_limit_a_request_is_shed_with_the_limits_name_and_a_hint(
    nats_url: str, keys: Path, limits: dict[str, int], limit: str
) -> None:
    client, free = Client("a", "over"), Client("b", "free")
    before = value(REFUSALS, reason=limit, tenant="over")
    client.key = dataclasses.replace(client.key, limits=KeyLimits(**limits))
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client, free)) as running:
        call = asyncio.create_task(client.ask(running))
        envelope, _ = await peers.placed()
        refused = await client.ask(running)
        asked = len(tokenized(peers))
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"
        assert (await finish(peers, free.ask(running))).outcome == "finished"
    assert (refused.status, refused.outcome, refused.ends) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "shed",
        1,
    )
    assert refused.end is not None
    assert f"{limit} = " in refused.end.error.message
    assert refused.end.error.retry_after_ms > 0
    assert asked == 1
    assert value(REFUSALS, reason=limit, tenant="over") == before + 1


async def test_what_can_never_fit_is_an_invalid_argument(nats_url: str, keys: Path) -> None:
    client = Client("a", "t", tokens_per_min=100)
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        ids = pb.TokenIds(ids=range(1, 92))
        exact = pb.GenerateRequest(token_ids=ids, sampling=pb.Sampling(max_tokens=10))
        refused = await client.ask(running, exact)
        assert not tokenized(peers)
        guessed = await client.ask(running, ask("x" * 91, max_tokens=10))
        assert not peers["prefill-0"].of(Prefill)
        fits = await finish(peers, client.ask(running, ask("hello", max_tokens=95)))
        assert client.ledger(running).live == 0
    for answer in (refused, guessed):
        assert (answer.status, answer.outcome) == (grpc.StatusCode.INVALID_ARGUMENT, "failed")
        assert answer.end is not None
        assert answer.end.error.code == "too_large"
        assert "101 tokens or more and the key a has tokens_per_min = 100" in answer.details
    assert fits.outcome == "finished"


async def test_tokens_that_were_not_used_are_given_back(nats_url: str, keys: Path) -> None:
    client = Client("a", "t", tokens_per_min=100)
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        for _ in range(5):  # each reserves 95 and uses 6
            answer = await finish(peers, client.ask(running, ask("hello", max_tokens=90)))
            assert answer.outcome == ("finished" if _ == 0 else "shed")
            small = await finish(peers, client.ask(running, ask("hello", max_tokens=5)))
            assert small.outcome == "finished"


Refusal = Callable[[Running, aiohttp.ClientSession, Client], Awaitable[str]]


def posting(path: str, body: object) -> Refusal:
    async def refused(_: Running, http: aiohttp.ClientSession, client: Client) -> str:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with http.post(path, data=data, headers=dict(client.metadata)) as reply:
            answer = await reply.json()
        return f"{reply.status} {answer['error']['message']}"

    return refused


async def generating(running: Running, _: aiohttp.ClientSession, client: Client) -> str:
    return (await client.ask(running, pb.GenerateRequest())).details


async def of_no_model(running: Running, _: aiohttp.ClientSession, client: Client) -> str:
    return (await client.ask(running, pb.GenerateRequest(text="x", model="gpt"))).details


async def embedding(running: Running, _: aiohttp.ClientSession, client: Client) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.stub.Embed(pb.EmbedRequest(), metadata=client.metadata)
    return str(refused.value.details())


async def tokenizing(running: Running, _: aiohttp.ClientSession, client: Client) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.stub.Tokenize(pb.TokenizeRequest(text="x", model="gpt"), metadata=client.metadata)
    return str(refused.value.details())


@pytest.mark.thorough(but="no JSON | generating | embedding")
@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(posting("/v1/completions", b"{"), id="no JSON"),
        pytest.param(posting("/v1/completions", {"prompt": 1}), id="a wrong field"),
        pytest.param(posting("/v1/chat/completions", {"messages": []}), id="no prompt"),
        pytest.param(posting("/v1/completions", {"prompt": "x", "model": "gpt"}), id="no model"),
        pytest.param(posting("/v1/embeddings", b"[1]"), id="embeddings: no object"),
        pytest.param(posting("/v1/embeddings", {"input": []}), id="embeddings: no text"),
        pytest.param(posting("/tokenize", {"prompt": "x", "model": "gpt"}), id="tokenize: no model"),
        pytest.param(posting("/rerank", {"query": "", "documents": ["x"]}), id="rerank: blank"),
        generating,
        of_no_model,
        embedding,
        tokenizing,
    ],
)
async def test_who_is_refused_for_what_it_asks_has_asked(nats_url: str, keys: Path, refusal: Refusal) -> None:
    client = Client("a", "t", requests_per_min=2)
    async with (
        fleet(nats_url),
        gateway(nats_url, api_keys=write(keys, client)) as running,
        http_client(running.http.address) as http,
    ):
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        told = [await refusal(running, http, client) for _ in range(3)]
    assert "requests_per_min" not in told[0] + told[1]
    assert "the key a has requests_per_min = 2 and has used them up" in told[2]


async def test_refused_requests_say_nothing_about_the_time_that_others_have(
    nats_url: str, keys: Path
) -> None:
    hasty, patient = Client("hasty", "hasty"), Client("patient", "patient")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, hasty, patient)) as running:
        assert (await finish(peers, patient.ask(running))).outcome == "finished"
        pressure = running.registry._context.pressure
        usual_s = pressure.usual_budget_s
        peers["prefill-0"].say(queued_tokens=100_000, tokens_per_s=1000.0)
        await until(lambda: running.fleet.instances("prefill")[0].heartbeat.worker.queued_tokens)
        for _ in range(20):
            refused = await hasty.ask(running, pb.GenerateRequest(text="x", ttft_deadline_ms=1))
            assert refused.outcome == "shed"
        assert pressure.usual_budget_s == usual_s > 1.0


# ---- what was taken is given back ----------------------------------------------------------------------

End = Callable[[Running, Fleet, Client], Awaitable[object]]


def silent(peers: Fleet, *kinds: type[Message]) -> None:
    def answers(message: Message) -> PeerAnswer:
        return None if isinstance(message, kinds) else default_answer(message)

    for peer in peers.peers.values():
        peer.answers = answers


async def finished(running: Running, peers: Fleet, client: Client) -> None:
    assert (await finish(peers, client.ask(running))).outcome == "finished"


async def failed(running: Running, _: Fleet, client: Client) -> None:
    assert (await client.ask(running, pb.GenerateRequest(text="x", model="gpt"))).outcome == "failed"


async def invalid(running: Running, _: Fleet, client: Client) -> None:
    assert (await client.ask(running, pb.GenerateRequest())).outcome == "failed"


async def expired(running: Running, peers: Fleet, client: Client) -> None:
    silent(peers, Reserve, Open, Prefill)
    answer = await client.ask(running, pb.GenerateRequest(text="x", ttft_deadline_ms=300))
    assert answer.outcome == "expired"


async def shed(running: Running, peers: Fleet, client: Client) -> None:
    peers["prefill-0"].say(queued_tokens=100_000, tokens_per_s=1000.0)
    await until(lambda: running.fleet.instances("prefill")[0].heartbeat.worker.queued_tokens)
    answer = await client.ask(running, pb.GenerateRequest(text="x", ttft_deadline_ms=5000))
    assert answer.outcome == "shed"
    peers["prefill-0"].say(queued_tokens=0, tokens_per_s=0.0)
    await until(lambda: not running.fleet.instances("prefill")[0].heartbeat.worker.queued_tokens)


async def cancelled_by_id(running: Running, peers: Fleet, client: Client) -> None:
    call = asyncio.create_task(client.ask(running))
    envelope, _ = await peers.placed()
    await running.stub.Cancel(pb.CancelRequest(request_id=envelope.request_id), metadata=client.metadata)
    assert (await call).outcome == "cancelled"


async def dropped_in_mid_stream(running: Running, peers: Fleet, client: Client) -> None:
    call = running.stub.Generate(ask("hello"), metadata=client.metadata)
    envelope, _ = await peers.placed()
    await peers.text(envelope.request_id, 5, "a")
    while not (await call.read()).text.text:
        pass
    call.cancel()


async def dropped_before_admission(running: Running, peers: Fleet, client: Client) -> None:
    silent(peers, Tokenize)
    call = running.stub.Generate(ask("hello"), metadata=client.metadata)
    await until(lambda: tokenized(peers))
    call.cancel()


async def drained(running: Running, _: Fleet, client: Client) -> None:
    running.registry.drain_gate.closing = True
    assert (await client.ask(running)).status is grpc.StatusCode.UNAVAILABLE
    running.registry.drain_gate.closing = False


@pytest.mark.thorough(but="finished | failed | expired | dropped_in_mid_stream | shed")
@pytest.mark.parametrize(
    "end",
    [
        finished,
        failed,
        invalid,
        expired,
        shed,
        cancelled_by_id,
        dropped_in_mid_stream,
        dropped_before_admission,
        drained,
    ],
    ids=lambda end: end.__name__,
)
async def test_however_a_request_ends_its_place_is_free_again(nats_url: str, keys: Path, end: End) -> None:
    client = Client("a", "t", concurrency=1)
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        await end(running, peers, client)
        await until(lambda: client.ledger(running).live == 0)
        silent(peers)
        assert (await finish(peers, client.ask(running))).outcome == "finished"
        assert client.ledger(running).live == 0


@pytest.mark.thorough
async def test_the_next_request_may_follow_the_end_of_the_last_at_once(nats_url: str, keys: Path) -> None:
    client = Client("a", "t", concurrency=1)
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        for _ in range(10):
            assert (await finish(peers, client.ask(running))).outcome == "finished"


async def test_a_full_gateway_gives_back_what_it_has_no_room_for(nats_url: str, keys: Path) -> None:
    client, other = Client("a", "t", requests_per_min=1, tokens_per_min=200), Client("b", "t")
    options = {"api_keys": write(keys, client, other), "max_sessions": 1}
    async with fleet(nats_url) as peers, gateway(nats_url, **options) as running:
        call = asyncio.create_task(other.ask(running))
        envelope, _ = await peers.placed()
        for _ in range(3):
            refused = await client.ask(running)
            assert "sessions of this gateway" in refused.details
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
        await until(lambda: running.registry.audit().held == ())
        assert (await finish(peers, client.ask(running))).outcome == "finished"


# ---- a change of the file ------------------------------------------------------------------------------


async def test_a_removed_key_lets_its_live_requests_finish_and_begins_no_more(
    nats_url: str, keys: Path
) -> None:
    old, new = Client("old", "t"), Client("new", "t")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, old)) as running:
        call = asyncio.create_task(old.ask(running))
        envelope, _ = await peers.placed()
        write(keys, new)
        await in_force(running, new)
        assert (await old.ask(running)).status is grpc.StatusCode.UNAUTHENTICATED
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"
        assert (await finish(peers, new.ask(running))).outcome == "finished"


@pytest.mark.thorough(but='/v1/completions-{"prompt": "hello"} | /tokenize-{"prompt": "hello"}')
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt": "hello"}'),
        ("/v1/embeddings", b'{"input": "hello"}'),
        ("/tokenize", b'{"prompt": "hello"}'),
        ("/rerank", b'{"query": "hello", "documents": ["a"]}'),
        ("/v1/vector_stores/default/search", b'{"query": "hello"}'),
    ],
)
async def test_a_key_that_is_revoked_while_its_body_comes_is_a_401(
    nats_url: str, keys: Path, path: str, body: bytes
) -> None:
    one, other = Client("one", "acme"), Client("other", "acme")
    async with fleet(nats_url), gateway(nats_url, api_keys=write(keys, one, other)) as running:
        host, _, port = running.http.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            f"Content-Type: application/json\r\nAuthorization: {one.metadata[0][1]}\r\n"
            "Expect: 100-continue\r\n\r\n"
        )
        writer.write(head.encode())
        await asyncio.wait_for(reader.readuntil(b"100 Continue\r\n\r\n"), 60)  # it is known by its key now
        write(keys, other)
        await running.key_gate.keys.reload()
        writer.write(body)
        answer = await asyncio.wait_for(reader.readuntil(b"}}"), 60)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"does not know the API key any more" in answer


async def test_limits_change_while_requests_are_live(nats_url: str, keys: Path) -> None:
    client = Client("a", "t", concurrency=1)
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        call = asyncio.create_task(client.ask(running))
        envelope, _ = await peers.placed()
        assert (await client.ask(running)).outcome == "shed"
        client.key = dataclasses.replace(client.key, limits=KeyLimits(concurrency=2))
        write(keys, client)
        await in_force(running, client)
        assert (await finish(peers, client.ask(running))).outcome == "finished"
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"
        assert client.ledger(running).live == 0


@pytest.mark.thorough(but="None | ''")
@pytest.mark.parametrize("content", ["[[key]]\nname = 1\n", "", "\xff", None], ids=repr)
async def test_a_file_that_cannot_be_used_changes_nothing_until_it_is_put_right(
    nats_url: str, keys: Path, content: str | None
) -> None:
    client, new = Client("a", "t"), Client("new", "t")
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=write(keys, client)) as running:
        damage(keys, content)
        await until(lambda: value("penstock_api_keys_stale") == 1)
        assert (await finish(peers, client.ask(running))).outcome == "finished"
        write(keys, new)
        await in_force(running, new)
        assert value("penstock_api_keys_stale") == 0
        assert (await client.ask(running)).status is grpc.StatusCode.UNAUTHENTICATED
        assert (await finish(peers, new.ask(running))).outcome == "finished"
