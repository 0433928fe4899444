"""A gateway and the answers that are known already: given at once, kept after the end, never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.deadline import Deadline
from shared.errors import Overloaded
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from shared.messages import (
    KeepResponse,
    KeptResponse,
    LookUpResponse,
    Message,
    Prefill,
    Reserve,
    ResponseFound,
    ResponseMissing,
    Retrieve,
    Retrieved,
    ScoredPassage,
    Tokenize,
    pack_ids,
)
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import Fleet, Running, ask, default_answer, fleet, gateway
from tests.support import metric
from tests.support.client import Answer, generate
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever")
PASSAGE = ScoredPassage("doc.md", "Water flows.", 0.5)
KEPT = KeptResponse(
    request_id="gateway-x.1",
    model="test-model",
    seed=7,
    prompt_tokens=5,
    token_ids=pack_ids([104, 105]),
    text="hi",
    finish="stop",
)


def wanting(
    mode: pb.CacheMode = pb.CACHE_MODE_EXACT, text: str = "hello", *, retrieves: bool = False
) -> pb.GenerateRequest:
    message = ask(text, temperature=0.0)
    message.cache.mode = mode
    message.retrieval.enabled = retrieves
    return message


def answers(found: PeerAnswer, generation: str = "g") -> Callable[[Message], PeerAnswer]:
    """Of a retriever; None: it says nothing to a lookup."""

    def answer(message: Message) -> PeerAnswer:
        match message:
            case LookUpResponse():
                return found
            case Retrieve():
                return Retrieved((PASSAGE,), "", 1, 1)
            case _:
                return default_answer(message)

    return answer


@asynccontextmanager
async def serving(
    nats_url: str, found: PeerAnswer, **options: object
) -> AsyncIterator[tuple[Fleet, Running]]:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, **options) as running:
        peers["retriever-0"].answers = answers(found)
        for role in ROLES:
            await running.knows(role, 1)
        yield peers, running


async def computed(
    peers: Fleet, running: Running, message: pb.GenerateRequest, finish: str = "stop"
) -> Answer:
    """The answer that workers give to the only request."""
    call = asyncio.create_task(generate(running.stub, message))
    envelope, prefill = await peers.placed()
    await peers.text(envelope.request_id, len(prefill.token_ids) // 4, "ab")
    await peers.text(envelope.request_id, len(prefill.token_ids) // 4 + 2, "c", finish=finish)
    return await call


def lookups(peers: Fleet) -> list[LookUpResponse]:
    return [m for _, m in peers["retriever-0"].of(LookUpResponse) if isinstance(m, LookUpResponse)]


def kept(peers: Fleet) -> list[KeepResponse]:
    return [m for _, m in peers["retriever-0"].of(KeepResponse) if isinstance(m, KeepResponse)]


async def test_an_earlier_answer_ends_the_request_and_no_worker_hears_of_it(nats_url: str) -> None:
    async with serving(nats_url, ResponseFound(KEPT, 1500, 1.0)) as (peers, running):
        answer = await generate(running.stub, wanting())
        assert (answer.text, answer.ids, answer.positions) == ("hi", [104, 105], [5, 6])
        assert (answer.outcome, answer.finish_reason, answer.ends) == ("finished", "stop", 1)
        assert answer.prompt is not None
        cached = answer.prompt.cached
        assert (cached.request_id, cached.age_ms, cached.similarity) == ("gateway-x.1", 1500, 1.0)
        assert answer.prompt.request_id != "gateway-x.1"
        assert answer.prompt.seed == 7
        assert answer.end is not None
        assert (answer.end.usage.prompt_tokens, answer.end.usage.completion_tokens) == (5, 2)
        assert not any(peer.of(kind) for peer in peers.peers.values() for kind in (Prefill, Reserve))
        await until(lambda: not running.registry.audit().held)
        assert kept(peers) == []


async def test_the_timeline_of_an_earlier_answer_is_whole_and_has_the_phase_cache(nats_url: str) -> None:
    async with serving(nats_url, ResponseFound(KEPT, 0, 1.0)) as (_, running):
        answer = await generate(running.stub, wanting())
    assert answer.end is not None
    timeline = answer.end.timeline
    assert "cache" in [phase.name for phase in timeline.phases]
    assert sum(phase.duration_us for phase in timeline.phases) == timeline.total_us
    assert 0 < timeline.ttft_us <= timeline.total_us


async def test_an_answer_that_is_found_first_stops_what_was_asked_beside_it(nats_url: str) -> None:
    async with serving(nats_url, ResponseFound(KEPT, 0, 1.0)) as (peers, running):
        peers["tokenizer-0"].answers = lambda message: (
            None if isinstance(message, Tokenize) else default_answer(message)
        )
        answer = await generate(running.stub, wanting())
        assert answer.text == "hi"
        await until(lambda: "tokenizer-0" in peers.cancels())


async def test_an_answer_that_was_missed_is_kept_when_it_has_finished(nats_url: str) -> None:
    async with serving(nats_url, ResponseMissing("g")) as (peers, running):
        answer = await computed(peers, running, wanting())
        await until(lambda: kept(peers))
    (keep,), (lookup,) = kept(peers), lookups(peers)
    assert keep.key == lookup.key
    assert answer.prompt is not None
    assert not answer.prompt.HasField("cached")
    response = keep.response
    assert (response.text, response.finish, response.prompt_tokens) == ("abc", "stop", 5)
    assert (response.request_id, response.token_ids) == (answer.prompt.request_id, pack_ids(answer.ids))


async def test_an_answer_from_passages_is_kept_with_them_for_the_index_they_are_from(nats_url: str) -> None:
    async with serving(nats_url, ResponseMissing("g")) as (peers, running):
        await computed(peers, running, wanting(retrieves=True))
        await until(lambda: kept(peers))
    (keep,) = kept(peers)
    assert (keep.retrieves, keep.generation, keep.response.passages) == (True, "g", (PASSAGE,))


async def test_an_answer_is_kept_and_given_out_with_what_was_searched_for(nats_url: str) -> None:
    message = wanting(retrieves=True)
    message.retrieval.query = "flowing water"
    async with serving(nats_url, ResponseMissing("g")) as (peers, running):
        await computed(peers, running, message)
        await until(lambda: kept(peers))
        (keep,) = kept(peers)
        assert keep.response.retrieval_query == "flowing water"
        peers["retriever-0"].answers = answers(ResponseFound(keep.response, 0, 1.0))
        again = await generate(running.stub, message)
    assert again.prompt is not None
    assert again.prompt.HasField("cached")
    assert again.prompt.retrieval_query == "flowing water"


async def test_an_answer_without_the_passages_it_wanted_is_not_kept(nats_url: str) -> None:
    async with serving(nats_url, ResponseMissing("g")) as (peers, running):
        peers["retriever-0"].answers = lambda message: (
            Retrieved((), "retrieval", 0, 0)
            if isinstance(message, Retrieve)
            else answers(ResponseMissing("g"))(message)
        )
        await computed(peers, running, wanting(retrieves=True))
        await computed_again(peers, running)
    assert [keep.retrieves for keep in kept(peers)] == [False]


async def computed_again(peers: Fleet, running: Running) -> None:
    """Another request, whose answer is kept: what came before it has been sent by then."""
    call = asyncio.create_task(generate(running.stub, wanting(text="other")))
    seen = {envelope.request_id for envelope, _ in peers["prefill-0"].of(Prefill)}

    def new() -> str:
        ids = [envelope.request_id for envelope, _ in peers["prefill-0"].of(Prefill)]
        return next((each for each in ids if each not in seen), "")

    request_id = await until(new)
    await until(lambda: any(e.request_id == request_id for e, _ in peers["decode-0"].of(Reserve)))
    await peers.text(str(request_id), 5, "z", finish="stop")
    await call
    await until(lambda: kept(peers))


@pytest.mark.thorough(but="silent")
@pytest.mark.parametrize("broken", ["silent", "overloaded", "gone"])
async def test_a_retriever_that_does_not_answer_is_a_miss(nats_url: str, broken: str) -> None:
    before = metric.value("penstock_response_cache_asks_total", result="none")
    found = Overloaded("full") if broken == "overloaded" else None
    async with serving(nats_url, found, cache_wait_ms=1.0) as (peers, running):
        if broken == "gone":
            await peers["retriever-0"].stop()
            await running.knows("retriever", 0)
        answer = await computed(peers, running, wanting())
        assert answer.text == "abc"
        assert kept(peers) == []
    assert metric.value("penstock_response_cache_asks_total", result="none") == before + 1


async def test_while_the_prompt_is_made_a_slow_lookup_may_still_find(nats_url: str) -> None:
    async with serving(nats_url, None, cache_wait_ms=0.0) as (peers, running):
        retriever, tokenizer = peers["retriever-0"], peers["tokenizer-0"]
        tokenizer.answers = lambda message: None if isinstance(message, Tokenize) else default_answer(message)
        call = asyncio.create_task(generate(running.stub, wanting()))
        await until(lambda: tokenizer.of(Tokenize) and lookups(peers))
        ((envelope, _),) = retriever.of(LookUpResponse)
        await retriever.bus.reply(envelope, ResponseFound(KEPT, 0, 1.0))
        assert (await call).text == "hi"


async def test_a_lookup_carries_a_deadline_of_its_own(nats_url: str) -> None:
    async with serving(nats_url, ResponseMissing("g")) as (peers, running):
        await computed(peers, running, wanting())
        ((envelope, _),) = peers["retriever-0"].of(LookUpResponse)
        end = peers.bus.deadline_of(envelope)
    assert end is not None
    assert end < Deadline.after(1.0)


async def test_a_client_that_leaves_during_the_lookup_leaves_nothing(nats_url: str) -> None:
    async with serving(nats_url, None, semantic_cache_wait_ms=1000.0) as (peers, running):
        call = running.stub.Generate(wanting(pb.CACHE_MODE_SEMANTIC))
        await until(lambda: lookups(peers))
        call.cancel()
        await until(lambda: not running.registry.audit().held)
        assert not any(peer.of(Prefill) for peer in peers.peers.values())


async def test_who_asks_for_no_earlier_answer_asks_nobody_and_keeps_nothing(nats_url: str) -> None:
    async with serving(nats_url, ResponseFound(KEPT, 0, 1.0)) as (peers, running):
        assert (await computed(peers, running, ask("hello", temperature=0.0))).text == "abc"
        assert (lookups(peers), kept(peers)) == ([], [])


async def test_a_gateway_s_default_counts_where_the_request_says_nothing(nats_url: str) -> None:
    async with serving(nats_url, ResponseFound(KEPT, 0, 1.0), cache_mode="exact") as (_, running):
        assert (await generate(running.stub, ask("hello", temperature=0.0))).text == "hi"


@pytest.mark.thorough(but="0-semantic-exact-looked_up2 | 2-semantic-off-looked_up5")
@pytest.mark.parametrize(
    ("own", "of_key", "of_gateway", "looked_up"),
    [
        (pb.CACHE_MODE_UNSPECIFIED, "exact", "off", ["exact"]),
        (pb.CACHE_MODE_UNSPECIFIED, "off", "exact", []),
        (pb.CACHE_MODE_UNSPECIFIED, "semantic", "exact", ["semantic"]),
        (pb.CACHE_MODE_UNSPECIFIED, "", "exact", ["exact"]),
        (pb.CACHE_MODE_OFF, "exact", "exact", []),
        (pb.CACHE_MODE_EXACT, "semantic", "off", ["exact"]),
    ],
)
async def test_the_request_s_own_word_counts_first_then_its_key_s_then_the_gateway_s(
    nats_url: str, tmp_path: Path, own: pb.CacheMode, of_key: str, of_gateway: str, looked_up: list[str]
) -> None:
    secret, file = new_api_key(), tmp_path / "keys.toml"
    file.write_text(describe_api_key(ApiKey("web", "acme", hash_api_key(secret), cache=of_key)))
    options = {"cache_mode": of_gateway, "api_keys": str(file)}
    async with serving(nats_url, ResponseMissing("g"), **options) as (peers, running):
        metadata = (("authorization", f"Bearer {secret}"),)
        call = asyncio.create_task(generate(running.stub, wanting(own), metadata=metadata))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
        modes = ["semantic" if lookup.key.question else "exact" for lookup in lookups(peers)]
    assert modes == looked_up


async def test_the_question_of_a_semantic_lookup_goes_along_with_what_it_may_be_answered_by(
    nats_url: str,
) -> None:
    message = wanting(pb.CACHE_MODE_SEMANTIC, "what flows?")
    message.cache.min_similarity, message.cache.max_age_ms = 0.75, 5000
    async with serving(nats_url, ResponseFound(KEPT, 9, 0.875)) as (peers, running):
        answer = await generate(running.stub, message)
        (lookup,) = lookups(peers)
    assert (lookup.key.question, lookup.min_similarity, lookup.max_age_ms) == ("what flows?", 0.75, 5000)
    assert answer.prompt is not None
    assert answer.prompt.cached.similarity == 0.875


async def test_over_http_the_answer_says_whose_it_was(nats_url: str) -> None:
    async with (
        serving(nats_url, ResponseFound(KEPT, 40, 1.0)) as (_, running),
        aiohttp.ClientSession() as web,
    ):
        body = {"prompt": "hello", "temperature": 0, "penstock": {"cache": {"mode": "exact"}}}
        async with web.post(f"http://{running.http.address}/v1/completions", json=body) as response:
            answer = await response.json()
    assert answer["choices"][0]["text"] == "hi"
    (request,) = answer["penstock"]["requests"]
    assert request["cached"] == {"request_id": "gateway-x.1", "age_ms": 40, "similarity": 1.0}


async def test_over_http_the_header_asks_for_it_too(nats_url: str) -> None:
    async with (
        serving(nats_url, ResponseFound(KEPT, 40, 1.0)) as (_, running),
        aiohttp.ClientSession() as web,
    ):
        body, headers = {"prompt": "hello", "temperature": 0}, {"x-penstock-cache": "exact"}
        address = f"http://{running.http.address}/v1/completions"
        async with web.post(address, json=body, headers=headers) as response:
            assert (await response.json())["choices"][0]["text"] == "hi"
