"""Requests with an adapter: who gets them, what is sent, and how they go on. The workers are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import Overloaded
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from shared.messages import (
    NO_ADAPTER,
    AdapterId,
    AdapterReport,
    Cancel,
    Message,
    Prefill,
    Reserve,
    Retrieve,
    Retrieved,
    ScoredPassage,
    Tokenize,
    unpack_hashes,
    unpack_ids,
)
from tests.integration.gateway_peers import MODEL, Answer, Fleet, Running, ask, default_answer, fleet, gateway
from tests.support import metric
from tests.support.block_hashes import hashes_of
from tests.support.client import Answer as Answered
from tests.support.client import generate
from tests.support.http import call, http_client
from tests.support.wait import until

SQL, NEWER = AdapterId("sql", "d1"), AdapterId("sql", "d2")
WANTED = f"{MODEL}:sql"
WORKERS = ("prefill", "decode")


def reports(*adapters: AdapterId) -> tuple[AdapterReport, ...]:
    return tuple(AdapterReport(each.name, 1, each.digest, 8) for each in adapters)


def of_adapter(text: str, model: str = WANTED) -> pb.GenerateRequest:
    request = ask(text)
    request.model = model
    return request


async def say(peers: Fleet, running: Running, number: int, *adapters: AdapterId) -> None:
    """Both workers of that number announce these; returns when the gateway has heard it."""
    said = reports(*adapters)
    for role in WORKERS:
        peers[f"{role}-{number}"].say(adapters=said)

    def heard() -> bool:
        views = [running.fleet.get(role, f"{role}-{number}") for role in WORKERS]
        return all(view is not None and view.heartbeat.worker.adapters == said for view in views)

    await until(heard)


@asynccontextmanager
async def serving(nats_url: str, workers: int = 1, **options: object) -> AsyncIterator[tuple[Fleet, Running]]:
    """So many workers of each kind; the last ones have the adapter, as one has more to do than the others."""
    async with fleet(nats_url) as peers, gateway(nats_url, **options) as running:
        for number in range(1, workers):
            for role in WORKERS:
                await peers.add(role, number, live=number, queued_tokens=5000 * number)
        for role, count in (("tokenizer", 1), ("prefill", workers), ("decode", workers), ("detokenizer", 1)):
            await running.knows(role, count)
        await say(peers, running, workers - 1, SQL)
        yield peers, running


async def answered(peers: Fleet, running: Running, request: pb.GenerateRequest) -> Answered:
    """With one token, by whoever got it."""
    asked = asyncio.create_task(generate(running.stub, request))
    local = bool(running.registry._context.config.local_prefill_tokens)
    envelope, message = (
        await peers.routed_locally()
        if local
        else await peers.placed(prefill=f"prefill-{len(running.fleet.instances('prefill')) - 1}")
    )
    await peers.text(envelope.request_id, message.prompt_len, "a", finish="stop")
    return await asked


async def test_a_request_goes_to_workers_that_have_its_adapter_though_others_are_idle(nats_url: str) -> None:
    async with serving(nats_url, workers=2) as (peers, running):
        for _ in range(2):
            answer = await answered(peers, running, of_adapter("hello"))
            assert answer.outcome == "finished"
            peers["prefill-1"].got.clear()
        assert peers["prefill-0"].got == peers["decode-0"].got == []


@pytest.mark.parametrize(
    ("passages", "named"), [((ScoredPassage("doc.md", "Water flows.", 0.5),), WANTED), ((), MODEL)]
)
async def test_passages_are_answered_from_with_the_adapter_for_that(
    nats_url: str, passages: tuple[ScoredPassage, ...], named: str
) -> None:
    def retriever(message: Message) -> Answer:
        return Retrieved(passages, "", 1, 1) if isinstance(message, Retrieve) else default_answer(message)

    async with serving(nats_url, retrieval_adapter=SQL.name) as (peers, running):
        peer = await peers.add("retriever")
        peer.answers = retriever
        await running.knows("retriever", 1)
        request = ask("what flows?")
        request.retrieval.enabled = True
        answer = await answered(peers, running, request)
        ((_, prefill),) = peers["prefill-0"].of(Prefill)
        ((_, tokenize),) = peers["tokenizer-0"].of(Tokenize)
    assert isinstance(prefill, Prefill)
    assert isinstance(tokenize, Tokenize)
    assert answer.prompt is not None
    assert answer.prompt.model == named
    adapter = SQL if passages else NO_ADAPTER
    assert (prefill.adapter, tokenize.adapter) == (adapter, adapter.digest)


async def test_so_does_a_prompt_that_is_computed_at_decode(nats_url: str) -> None:
    async with serving(nats_url, workers=2, local_prefill_tokens=512) as (peers, running):
        peers["decode-1"].say(live=0)
        await until(lambda: all(view.heartbeat.live == 0 for view in running.fleet.instances("decode")))
        await answered(peers, running, of_adapter("hello"))
        ((_, reserve),) = peers["decode-1"].of(Reserve)
        assert peers["decode-0"].got == peers["prefill-1"].got == []
    assert isinstance(reserve, Reserve)
    assert (reserve.prefill, reserve.adapter) == ("", SQL)


async def test_both_workers_hear_which_adapter_it_is_and_blocks_have_names_of_its_own(nats_url: str) -> None:
    text = "a prompt of more than two blocks, as it is"
    async with serving(nats_url) as (peers, running):
        await answered(peers, running, of_adapter(text))
        ((_, prefill),) = peers["prefill-0"].of(Prefill)
        ((_, reserve),) = peers["decode-0"].of(Reserve)
        ((_, tokenize),) = peers["tokenizer-0"].of(Tokenize)
    assert isinstance(prefill, Prefill)
    assert isinstance(reserve, Reserve)
    assert isinstance(tokenize, Tokenize)
    assert prefill.adapter == reserve.adapter == SQL
    assert tokenize.adapter == SQL.digest
    ids = unpack_ids(prefill.token_ids)
    assert unpack_hashes(prefill.block_hashes) == hashes_of(ids, adapter=SQL.digest)
    assert prefill.block_hashes == reserve.block_hashes


async def test_blocks_of_a_prompt_that_came_as_ids_have_the_adapter_s_names_too(nats_url: str) -> None:
    ids = list(range(40))
    async with serving(nats_url) as (peers, running):
        peers["tokenizer-0"].say(vocab_tokens=100)
        await until(lambda: running.fleet.instances("tokenizer")[0].heartbeat.tokenizer.vocab_tokens)
        request = pb.GenerateRequest(model=WANTED, token_ids=pb.TokenIds(ids=ids))
        await answered(peers, running, request)
        ((_, prefill),) = peers["prefill-0"].of(Prefill)
    assert isinstance(prefill, Prefill)
    assert peers["tokenizer-0"].got == []
    assert unpack_hashes(prefill.block_hashes) == hashes_of(ids, adapter=SQL.digest)


async def test_what_clients_metrics_and_the_log_are_told_is_model_and_adapter(
    nats_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = {"model": WANTED, "finish_reason": "stop"}
    before = metric.value("penstock_finished_requests_total", **counted)
    async with serving(nats_url) as (peers, running):
        answer = await answered(peers, running, of_adapter("hello"))
        await until(lambda: metric.value("penstock_finished_requests_total", **counted) == before + 1)
    assert answer.prompt is not None
    assert answer.prompt.model == WANTED
    assert f"model={WANTED}" in capsys.readouterr().out  # the request's line in the log


async def test_an_unknown_adapter_is_not_found_and_told_what_there_is(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running), http_client(running.http.address) as client:
        answer = await generate(running.stub, of_adapter("hello", f"{MODEL}:nosql"))
        reply = await call(client, "/v1/completions", {"model": f"{MODEL}:nosql", "prompt": "hello"})
        assert peers["prefill-0"].got == []
    assert answer.status == grpc.StatusCode.NOT_FOUND
    assert f"no adapter 'nosql': send {MODEL} or one of {WANTED}" in answer.details
    assert (reply.status, reply.body["error"]["param"]) == (404, "model")
    assert reply.body["error"]["code"] == "model_not_found"


async def test_adapters_are_listed_behind_their_model_with_who_has_them(nats_url: str) -> None:
    async with serving(nats_url, workers=2) as (_, running), http_client(running.http.address) as client:
        listed = (await running.stub.ListModels(pb.ListModelsRequest())).models
        reply = await call(client, "/v1/models")
        one = await call(client, f"/v1/models/{WANTED}")
    assert [(model.name, model.base) for model in listed] == [(MODEL, ""), (WANTED, MODEL)]
    names = {instance.name for instance in listed[1].instances}
    assert names == {"prefill-1", "decode-1", "tokenizer-0", "detokenizer-0"}
    shown = [(model["id"], model["root"], model["parent"]) for model in reply.body["data"]]
    assert shown == [(MODEL, MODEL, None), (WANTED, MODEL, MODEL)]
    assert one.body == reply.body["data"][1]


async def test_another_tenant_s_adapter_is_word_for_word_one_that_is_not_there(
    nats_url: str, tmp_path: Path
) -> None:
    secrets = {tenant: new_api_key() for tenant in ("acme", "rival")}
    file = tmp_path / "keys.toml"
    entries = [ApiKey(tenant, tenant, hash_api_key(secret)) for tenant, secret in secrets.items()]
    file.write_text("\n".join(map(describe_api_key, entries)))
    async with (
        serving(nats_url, api_keys=str(file)) as (peers, running),
        http_client(running.http.address) as client,
    ):
        for role in WORKERS:
            peers[f"{role}-0"].say(adapters=(replace(*reports(SQL), tenants=("acme",)),))
        await until(lambda: running.fleet.instances("decode")[0].heartbeat.worker.adapters[0].tenants)

        def with_key(tenant: str) -> str:
            return f"Bearer {secrets[tenant]}"

        async def told(tenant: str, adapter: str) -> list[object]:
            """Return all that a tenant hears of an adapter, everywhere."""
            metadata = (("authorization", with_key(tenant)),)
            answer = await generate(
                running.stub, of_adapter("hello", f"{MODEL}:{adapter}"), metadata=metadata
            )
            wanted = pb.TokenizeRequest(model=f"{MODEL}:{adapter}", text="ab")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await running.stub.Tokenize(wanted, metadata=metadata)
            replies = [
                await call(client, f"/v1/models/{MODEL}:{adapter}", authorization=with_key(tenant)),
                *[
                    await call(client, path, body, authorization=with_key(tenant))
                    for path, body in (
                        ("/v1/completions", {"model": f"{MODEL}:{adapter}", "prompt": "hello"}),
                        ("/tokenize", {"model": f"{MODEL}:{adapter}", "prompt": "hello"}),
                        ("/detokenize", {"model": f"{MODEL}:{adapter}", "tokens": [1]}),
                    )
                ],
            ]
            heard = [answer.status, answer.details, refused.value.code(), refused.value.details()]
            heard += [(reply.status, reply.body) for reply in replies]
            return [repr(each).replace(f"{adapter!r}", "X").replace(f":{adapter}", ":X") for each in heard]

        listed = {}
        for tenant in secrets:
            metadata = (("authorization", with_key(tenant)),)
            models = (await running.stub.ListModels(pb.ListModelsRequest(), metadata=metadata)).models
            reply = await call(client, "/v1/models", authorization=with_key(tenant))
            listed[tenant] = [model.name for model in models]
            assert [model["id"] for model in reply.body["data"]] == listed[tenant]
        one = await call(client, f"/v1/models/{WANTED}", authorization=with_key("acme"))
        assert await told("rival", "sql") == await told("rival", "nosql")
    assert listed == {"acme": [MODEL, WANTED], "rival": [MODEL]}
    assert one.status == 200


async def test_a_text_is_tokenized_for_an_adapter_as_for_its_model(nats_url: str) -> None:
    async with serving(nats_url) as (_, running):
        found = await running.stub.Tokenize(pb.TokenizeRequest(model=WANTED, text="ab"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.stub.Tokenize(pb.TokenizeRequest(model=f"{MODEL}:x", text="ab"))
    assert (found.model, list(found.token_ids)) == (WANTED, [97, 98])
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_lost_request_goes_on_under_the_same_digest_alone(nats_url: str) -> None:
    async with serving(nats_url, workers=2) as (peers, running):
        await say(peers, running, 0, NEWER)
        asked = asyncio.create_task(generate(running.stub, of_adapter("hello")))
        envelope, _ = await peers.placed(prefill="prefill-1")
        await peers.text(envelope.request_id, 5, "a")
        for role in WORKERS:
            peers[f"{role}-1"].say(state="draining")
            await running.knows(role, 1)
        await peers.lost(envelope.request_id, 1)
        await until(lambda: peers["prefill-1"].of(Cancel))
        await say(peers, running, 0, SQL)
        _, again = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 6, "b", epoch=2, finish="stop")
        answer = await asked
        placed = [message for _, message in peers["prefill-0"].of(Prefill)]
    assert (answer.text, answer.outcome) == ("ab", "finished")
    assert placed == [again]  # none while it had the other version
    assert again.adapter == SQL


async def test_an_adapter_that_no_worker_has_any_more_is_said_by_name(nats_url: str) -> None:
    async with serving(nats_url, admit_wait_s=0.2) as (peers, running):
        peers["prefill-0"].say(adapters=())
        await until(lambda: not running.fleet.instances("prefill")[0].heartbeat.worker.adapters)
        answer = await generate(running.stub, of_adapter("hello"))
    assert answer.status == grpc.StatusCode.UNAVAILABLE
    assert "no prefill instance that is ready has the adapter 'sql'" in answer.details


async def test_a_worker_that_has_it_no_more_is_left_for_another(nats_url: str) -> None:
    gone = Overloaded("the adapter 'sql' is not loaded here as it was asked for; use another worker")

    def decode(message: Message) -> Answer:
        return gone if isinstance(message, Reserve) else default_answer(message)

    async with serving(nats_url, workers=2) as (peers, running):
        await say(peers, running, 0, SQL)
        peers["decode-0"].answers = decode  # the one with least to do
        asked = asyncio.create_task(generate(running.stub, of_adapter("hello")))
        envelope, message = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 5, "a", epoch=2, finish="stop")
        assert (await asked).outcome == "finished"
    assert message.decode == "decode-1"
