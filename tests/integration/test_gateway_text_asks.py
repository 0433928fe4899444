"""ListModels, Tokenize, Detokenize and Embed of a real gateway, before scripted services."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.asks.text_asks import MAX_DETOKENIZE_IDS, MAX_EMBEDDED_TEXTS
from services.gateway.grpc.edge_status import STATUS_DETAILS
from shared.errors import InternalError, InvalidRequest, Overloaded
from shared.files.api_key_file import ApiKey, KeyLimits, describe_api_key, hash_api_key, new_api_key
from shared.messages import (
    MAX_EMBED_TEXT_BYTES,
    MAX_EMBED_TEXTS,
    Cancel,
    CancelAck,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Message,
    Tokenize,
    unpack_ids,
)
from tests.integration.gateway_peers import (
    MODEL,
    Answer,
    Fleet,
    Running,
    default_answer,
    fleet,
    gateway,
)
from tests.support.metric import value
from tests.support.wait import until

TEXT_ROLES = ("tokenizer", "retriever")
EMBEDDER = "embedder"


def answers(message: Message) -> Answer:
    """A text's vector is its length; a long one was cut."""
    match message:
        case Detokenize():
            return Detokenized("".join(chr(token_id) for token_id in unpack_ids(message.token_ids)))
        case Embed():
            vectors = tuple(array("f", [len(text), 0.5]).tobytes() for text in message.texts)
            lengths = tuple(len(text) for text in message.texts)
            return Embedded(vectors, lengths, tuple(length > 5 for length in lengths))
        case _:
            return default_answer(message)


async def scripted(peers: Fleet, running: Running) -> None:
    for peer in peers.peers.values():
        peer.answers = answers
        await running.knows(peer.role, sum(1 for other in peers.peers.values() if other.role == peer.role))


async def refused(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


# ---- ListModels -----------------------------------------------------------------------------------------


async def test_the_models_are_those_of_the_fleet_with_the_shortest_context_of_their_workers(
    nats_url: str,
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("decode", 1, context_tokens=2048)
        await peers.add("retriever", model=EMBEDDER, context_tokens=256)
        peers["decode-0"].say(context_tokens=4096)
        peers["prefill-0"].say(context_tokens=1024)
        peers["tokenizer-0"].say(chat_template=True)

        async def listed() -> list[pb.Model]:
            return list((await running.stub.ListModels(pb.ListModelsRequest())).models)

        async def complete() -> bool:
            models = await listed()
            return sum(len(model.instances) for model in models) == 6 and models[0].context_tokens == 1024

        await until(complete)
        generation, embedding = await listed()  # what a client takes that takes the first
    assert (embedding.name, embedding.kind) == (EMBEDDER, pb.MODEL_KIND_EMBEDDING)
    assert (embedding.context_tokens, embedding.has_chat_template) == (256, False)
    assert (generation.name, generation.kind) == (MODEL, pb.MODEL_KIND_GENERATION)
    assert generation.has_chat_template
    found = {(instance.role, instance.name) for instance in generation.instances}
    assert found == {(peer.role, peer.instance) for peer in peers.peers.values() if peer.role != "retriever"}


async def test_no_model_is_listed_that_no_decode_worker_has(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "prefill") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        assert not (await running.stub.ListModels(pb.ListModelsRequest())).models


# ---- Tokenize and Detokenize ----------------------------------------------------------------------------


async def test_a_text_and_a_chat_are_tokenized_as_a_prompt_would_be(nats_url: str) -> None:
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        text = await running.stub.Tokenize(pb.TokenizeRequest(text="abc"))
        turns = [pb.ChatMessage(role="user", content="de")]
        chat = await running.stub.Tokenize(pb.TokenizeRequest(chat=pb.ChatPrompt(messages=turns)))
    assert (text.model, list(text.token_ids)) == (MODEL, [97, 98, 99])
    assert list(chat.token_ids) == [100, 101]


@pytest.mark.thorough(but="None | False")
@pytest.mark.parametrize("wanted", [None, True, False])
async def test_special_tokens_are_added_unless_the_client_says_no(nats_url: str, wanted: bool | None) -> None:
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        await running.stub.Tokenize(pb.TokenizeRequest(text="abc", add_special_tokens=wanted))
        ((_, message),) = peers["tokenizer-0"].of(Tokenize)
    assert isinstance(message, Tokenize)
    assert message.add_special_tokens is (wanted is not False)


async def test_ids_become_their_text(nats_url: str) -> None:
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        answer = await running.stub.Detokenize(pb.DetokenizeRequest(token_ids=[104, 105]))
    assert (answer.model, answer.text) == (MODEL, "hi")


async def test_the_longest_list_of_ids_is_taken_and_a_longer_one_refused(nats_url: str) -> None:
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        longest = [104] * MAX_DETOKENIZE_IDS
        answer = await running.stub.Detokenize(pb.DetokenizeRequest(token_ids=longest))
        assert len(answer.text) == MAX_DETOKENIZE_IDS
        error = await refused(running.stub.Detokenize(pb.DetokenizeRequest(token_ids=[*longest, 104])))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(MAX_DETOKENIZE_IDS) in str(error.details())


WRONG = {
    "no prompt": (pb.TokenizeRequest(), "set one of text"),
    "empty text": (pb.TokenizeRequest(text=""), "text is empty"),
    "no ids": (pb.DetokenizeRequest(), "token_ids has 0 ids"),
    "no id": (pb.DetokenizeRequest(token_ids=[2**32 - 1]), "what is no id"),
    "no texts": (pb.EmbedRequest(), "texts has 0"),
    "too many texts": (pb.EmbedRequest(texts=["a"] * (MAX_EMBEDDED_TEXTS + 1)), f"{MAX_EMBEDDED_TEXTS}"),
    "blank text": (pb.EmbedRequest(texts=["a", " "]), "texts[1] is blank"),
    "long text": (pb.EmbedRequest(texts=["a" * (MAX_EMBED_TEXT_BYTES + 1)]), f"{MAX_EMBED_TEXT_BYTES}"),
    "long model": (pb.EmbedRequest(model="m" * 257, texts=["a"]), "model has 257 characters"),
}


def call(running: Running, request: object) -> Awaitable[object]:
    match request:
        case pb.TokenizeRequest():
            return running.stub.Tokenize(request)
        case pb.DetokenizeRequest():
            return running.stub.Detokenize(request)
        case pb.EmbedRequest():
            return running.stub.Embed(request)
        case _:
            raise TypeError(request)


@pytest.mark.thorough(but="long text | too many texts | no ids")
@pytest.mark.parametrize("name", WRONG)
async def test_what_cannot_be_asked_is_refused_with_what_to_send(nats_url: str, name: str) -> None:
    request, pattern = WRONG[name]
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        error = await refused(call(running, request))
        assert not any(peer.got for peer in peers.peers.values())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert pattern in str(error.details())


@pytest.mark.thorough(but="EmbedRequest")
@pytest.mark.parametrize(
    "request_",
    [
        pb.TokenizeRequest(model="other", text="a"),
        pb.DetokenizeRequest(model="other", token_ids=[1]),
        pb.EmbedRequest(model="other", texts=["a"]),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_a_model_that_is_not_served_is_not_found_and_the_served_ones_are_named(
    nats_url: str, request_: object
) -> None:
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        error = await refused(call(running, request_))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert f"send one of {MODEL}" in str(error.details())


async def test_what_the_tokenizer_refuses_is_not_asked_twice(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        peers["tokenizer-0"].answers = lambda _: InvalidRequest("token id 7 is not in the vocabulary")
        error = await refused(running.stub.Detokenize(pb.DetokenizeRequest(token_ids=[7])))
        assert len(peers["tokenizer-0"].got) == 1
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not in the vocabulary" in str(error.details())


# ---- Embed ----------------------------------------------------------------------------------------------


async def test_texts_are_embedded_in_parts_and_come_back_in_their_order(nats_url: str) -> None:
    texts = ["x" * (1 + n) for n in range(MAX_EMBED_TEXTS + 1)]
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        answer = await running.stub.Embed(pb.EmbedRequest(texts=texts))
        parts = [message for _, message in peers["retriever-0"].of(Embed)]
    assert [list(one.values) for one in answer.embeddings] == [[1.0 + n, 0.5] for n in range(len(texts))]
    assert [one.tokens for one in answer.embeddings] == [len(text) for text in texts]
    assert [one.truncated for one in answer.embeddings] == [len(text) > 5 for text in texts]
    assert [len(part.texts) for part in parts if isinstance(part, Embed)] == [MAX_EMBED_TEXTS, 1]


async def test_as_many_texts_as_may_be_are_embedded(nats_url: str) -> None:
    texts = ["a"] * (MAX_EMBEDDED_TEXTS - 1) + ["b" * MAX_EMBED_TEXT_BYTES]
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        answer = await running.stub.Embed(pb.EmbedRequest(texts=texts))
    assert len(answer.embeddings) == MAX_EMBEDDED_TEXTS


async def test_without_a_retriever_the_client_hears_so_at_once(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url, admit_wait_s=600.0) as running:
        await scripted(peers, running)
        error = await refused(running.stub.Embed(pb.EmbedRequest(texts=["a"])))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (
        error.details()
        == "retriever: no retriever is running: start one, as `penstock up --corpus PATH` does"
    )


# ---- instances that fail --------------------------------------------------------------------------------


async def test_an_instance_that_refuses_or_breaks_is_left_for_another(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url) as running:
        await peers.add("tokenizer", 1)
        await scripted(peers, running)
        for trouble in (Overloaded("full"), InternalError("broken")):
            peers["tokenizer-0"].answers = lambda _, trouble=trouble: trouble  # type: ignore[misc]
            for _ in range(2):  # in turn, so one of them begins with the other tokenizer
                assert (await running.stub.Tokenize(pb.TokenizeRequest(text="a"))).token_ids == [97]
        assert peers["tokenizer-0"].of(Tokenize)


async def test_an_instance_that_stays_silent_is_cancelled_and_another_one_asked(nats_url: str) -> None:
    def silent(message: Message) -> Answer:
        return CancelAck(True, "queued") if isinstance(message, Cancel) else None

    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url) as running:
        await peers.add("tokenizer", 1)
        await scripted(peers, running)
        peers["tokenizer-0"].answers = silent
        for _ in range(2):
            await running.stub.Tokenize(pb.TokenizeRequest(text="a"), timeout=4.0)
        await until(lambda: len(peers["tokenizer-0"].of(Cancel)) == len(peers["tokenizer-0"].of(Tokenize)))
        assert peers["tokenizer-0"].of(Cancel)


async def test_an_instance_that_is_lost_is_not_waited_for(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        peers["tokenizer-0"].answers = lambda _: None
        asked = asyncio.ensure_future(running.stub.Tokenize(pb.TokenizeRequest(text="a")))
        await until(lambda: peers["tokenizer-0"].of(Tokenize))
        await peers.add("tokenizer", 1)
        await running.knows("tokenizer", 2)
        await peers["tokenizer-0"].stop()
        assert (await asked).token_ids == [97]


async def test_when_nobody_answers_the_deadline_ends_the_call(nats_url: str, early_ends: float) -> None:
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        peers["tokenizer-0"].answers = lambda _: None
        error = await refused(running.stub.Tokenize(pb.TokenizeRequest(text="a"), timeout=early_ends))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "tokenizer" in str(error.details())  # the gateway's sentence, not gRPC's


async def test_a_call_without_a_deadline_has_the_configured_one(nats_url: str) -> None:
    async with (
        fleet(nats_url, "tokenizer") as peers,
        gateway(nats_url, default_text_deadline_s=0.2) as running,
    ):
        await scripted(peers, running)
        peers["tokenizer-0"].answers = lambda _: None
        error = await refused(running.stub.Tokenize(pb.TokenizeRequest(text="a")))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_client_that_goes_away_cancels_what_it_asked(nats_url: str) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        peers["retriever-0"].answers = lambda _: None
        asked = asyncio.ensure_future(running.stub.Embed(pb.EmbedRequest(texts=["a"])))
        await until(lambda: peers["retriever-0"].of(Embed))
        asked.cancel()
        await until(lambda: peers["retriever-0"].of(Cancel))
        ((question, _),) = peers["retriever-0"].of(Embed)
        ((cancel, _),) = peers["retriever-0"].of(Cancel)
    assert (cancel.request_id, cancel.epoch) == (question.request_id, question.epoch)


# ---- room, keys, draining -------------------------------------------------------------------------------


async def test_above_the_limit_a_call_is_shed_with_a_hint(nats_url: str) -> None:
    before = value("penstock_shed_total", hop="gateway", reason="calls")
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url, max_text_calls=1) as running:
        await scripted(peers, running)
        peers["tokenizer-0"].answers = lambda _: None
        first = asyncio.ensure_future(running.stub.Tokenize(pb.TokenizeRequest(text="a")))
        await until(lambda: peers["tokenizer-0"].of(Tokenize))
        error = await refused(running.stub.Tokenize(pb.TokenizeRequest(text="a")))
        first.cancel()
        peers["tokenizer-0"].answers = answers

        async def there_is_room() -> bool:
            try:
                await running.stub.Tokenize(pb.TokenizeRequest(text="a"))
            except grpc.aio.AioRpcError:
                return False
            return True

        await until(there_is_room)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert hint_ms(error) > 0
    assert value("penstock_shed_total", hop="gateway", reason="calls") > before


def hint_ms(error: grpc.aio.AioRpcError) -> int:
    metadata: Any = error.trailing_metadata()  # the stubs have it wrong
    info = RetryInfo()
    assert Status.FromString(dict(metadata)[STATUS_DETAILS]).details[0].Unpack(info)
    return int(info.retry_delay.ToMilliseconds())


def key_file(folder: Path, key: str, limits: KeyLimits) -> str:
    file = folder / "keys.toml"
    file.write_text(describe_api_key(ApiKey("one", "acme", hash_api_key(key), limits)))
    return str(file)


async def test_every_call_wants_a_key_where_there_are_keys(nats_url: str, tmp_path: Path) -> None:
    keys = key_file(tmp_path, new_api_key(), KeyLimits())
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url, api_keys=keys) as running:
        await scripted(peers, running)
        calls = [
            running.stub.ListModels(pb.ListModelsRequest()),
            running.stub.Tokenize(pb.TokenizeRequest(text="a")),
            running.stub.Detokenize(pb.DetokenizeRequest(token_ids=[1])),
            running.stub.Embed(pb.EmbedRequest(texts=["a"])),
        ]
        codes = [(await refused(one)).code() for one in calls]
        assert not any(peer.got for peer in peers.peers.values())
    assert set(codes) == {grpc.StatusCode.UNAUTHENTICATED}


async def test_calls_count_in_the_requests_of_their_key(nats_url: str, tmp_path: Path) -> None:
    key = new_api_key()
    keys = key_file(tmp_path, key, KeyLimits(requests_per_min=2))
    metadata = (("authorization", f"Bearer {key}"),)
    async with fleet(nats_url, *TEXT_ROLES) as peers, gateway(nats_url, api_keys=keys) as running:
        await scripted(peers, running)
        await running.stub.Tokenize(pb.TokenizeRequest(text="a"), metadata=metadata)
        await running.stub.Embed(pb.EmbedRequest(texts=["a"]), metadata=metadata)
        error = await refused(running.stub.Tokenize(pb.TokenizeRequest(text="a"), metadata=metadata))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "requests_per_min" in str(error.details())


async def test_embedded_tokens_count_as_many_as_they_were(nats_url: str, tmp_path: Path) -> None:
    key = new_api_key()
    keys = key_file(tmp_path, key, KeyLimits(tokens_per_min=100))
    metadata = (("authorization", f"Bearer {key}"),)
    texts = ["x" * 60]  # guessed as 15 tokens, and 60 in truth
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url, api_keys=keys) as running:
        await scripted(peers, running)
        for _ in range(2):
            await running.stub.Embed(pb.EmbedRequest(texts=texts), metadata=metadata)
        error = await refused(running.stub.Embed(pb.EmbedRequest(texts=texts), metadata=metadata))
    assert "tokens_per_min" in str(error.details())


async def test_a_draining_gateway_answers_what_it_was_asked_and_takes_no_new_call(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url) as running:
        await scripted(peers, running)
        held: list[Message] = []
        peers["tokenizer-0"].answers = held.append
        first = asyncio.ensure_future(running.stub.Tokenize(pb.TokenizeRequest(text="a")))
        await until(lambda: held)
        drain = asyncio.create_task(running.server.drain())
        await until(lambda: running.registry.drain_gate.closing)
        error = await refused(running.stub.Tokenize(pb.TokenizeRequest(text="b")))
        assert not drain.done()
        envelope, message = peers["tokenizer-0"].got[0]
        answer = default_answer(message)
        assert answer is not None
        assert not isinstance(answer, Exception)
        await peers.bus.reply(envelope, answer)
        assert (await first).token_ids == [97]
        await drain
    assert error.code() is grpc.StatusCode.UNAVAILABLE
