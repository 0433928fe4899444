"""What clients of a whole fleet see over both edges, with retrieval and the keys of several tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.files.api_key_file import hash_api_key
from tests.simulation.corpora import SHARED, index_corpora
from tests.simulation.edges.http_client import HttpAnswer
from tests.simulation.fleet import Fleet, fleet_of
from tests.support.client import Answer, request
from tests.support.models import make_tiny_checkpoint

GATEWAYS = ["gateway-0", "gateway-1"]
WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0", "retriever-0"]
ACME, GLOBEX, METERED = "psk_acme", "psk_globex", "psk_metered"
REQUESTS_PER_MIN = 4
PROMPT = [7 + at * 3 % 150 for at in range(40)]
LIMIT_S = 600.0
QUESTION = "what carries water to a turbine"


@dataclass
class Places:
    model: Path
    settings: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("edges")
    make_tiny_checkpoint(folder / "tiny")
    keys = folder / "keys.toml"
    keys.write_text(_key("acme", ACME) + _key("globex", GLOBEX) + _key("metered", METERED, REQUESTS_PER_MIN))
    return Places(
        folder / "tiny",
        {"retriever": index_corpora(folder, private="acme"), "gateway": {"api_keys": str(keys)}},
    )


def _key(tenant: str, key: str, requests_per_min: int = 0) -> str:
    limit = f"requests_per_min = {requests_per_min}\n" if requests_per_min else ""
    return f'[[key]]\nname = "{tenant}"\ntenant = "{tenant}"\nhash = "{hash_api_key(key)}"\n{limit}'


def body(seed: int, **fields: Any) -> dict[str, Any]:
    """What is asked of /v1/completions; the same as `request(PROMPT, …)` of gRPC."""
    return {
        "prompt": PROMPT,
        "max_tokens": 12,
        "seed": seed,
        "temperature": 0.8,
        "ignore_eos": True,
        **fields,
    }


def over_grpc(seed: int, **fields: Any) -> pb.GenerateRequest:
    return request(PROMPT, max_tokens=12, seed=seed, temperature=0.8, ignore_eos=True, **fields)


def question(corpus: str = SHARED, *, cached: bool = False, may_degrade: bool = False) -> pb.GenerateRequest:
    asked = request(QUESTION, max_tokens=8, seed=5, temperature=0.8, ignore_eos=True)
    asked.retrieval.MergeFrom(pb.Retrieval(enabled=True, corpus=corpus, k=2, may_degrade=may_degrade))
    if cached:
        asked.cache.mode = pb.CACHE_MODE_EXACT
    return asked


@dataclass
class Story:
    """What the clients of one quiet run have heard."""

    grpc: Answer
    stream: HttpAnswer
    whole: HttpAnswer
    left: list[object]
    late: Answer
    late_over_http: HttpAnswer
    health: HttpAnswer
    nobody: tuple[Answer, HttpAnswer]
    same_tenant: Answer
    other_tenant: Answer
    found: Answer
    kept: Answer
    found_by_another: Answer
    private: tuple[Answer, Answer]
    retriever_paused: Answer
    retriever_gone: tuple[Answer, Answer]
    retriever_back: Answer
    metered: list[Answer] = field(default_factory=list)


async def tell(fleet: Fleet) -> Story:
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    for name in GATEWAYS:
        fleet.start(name)
    await fleet.are_ready(WORKERS + GATEWAYS)
    one, other = fleet.client("client-0"), fleet.client("client-1")
    first = await one.generate("gateway-0", over_grpc(3), key=ACME)
    story = Story(
        grpc=first,
        stream=await one.ask("gateway-1", "/v1/completions", body(3, stream=True), key=ACME),
        whole=await one.ask("gateway-0", "/v1/completions", body(3), key=ACME),
        left=await leave(fleet),
        late=await one.generate("gateway-0", over_grpc(4, min_tokens=12), key=ACME, timeout_s=0.008),
        late_over_http=await one.ask(
            "gateway-0", "/v1/completions", body(4, max_tokens=200), key=ACME, x_penstock_deadline_ms="60"
        ),
        health=await one.ask("gateway-0", "/health"),
        nobody=(
            await one.generate("gateway-0", over_grpc(3)),
            await one.ask("gateway-0", "/v1/completions", body(3)),
        ),
        same_tenant=await other.generate("gateway-1", over_grpc(9), key=ACME),
        other_tenant=await other.generate("gateway-1", over_grpc(9), key=GLOBEX),
        found=await one.generate("gateway-0", question(cached=True), key=ACME),
        kept=await after_a_while(lambda: other.generate("gateway-1", question(cached=True), key=ACME)),
        found_by_another=await other.generate("gateway-1", question(cached=True), key=GLOBEX),
        private=(
            await one.generate("gateway-0", question("acme"), key=ACME),
            await one.generate("gateway-0", question("acme"), key=GLOBEX),
        ),
        retriever_paused=await ask_a_paused_retriever(fleet),
        retriever_gone=await ask_without_a_retriever(fleet),
        retriever_back=await ask_a_new_retriever(fleet),
    )
    metered = [
        client.generate(gateway, over_grpc(20 + turn), key=METERED)
        for turn in range(3)
        for client, gateway in ((one, "gateway-0"), (other, "gateway-1"))
    ]
    story.metered = [await call for call in metered]
    await asyncio.sleep(15.0)
    assert await fleet.held(WORKERS + GATEWAYS) == []
    return story


async def after_a_while(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask when what a gateway does after an answer, as keeping it, is done."""
    await asyncio.sleep(0.2)
    return await ask()


async def leave(fleet: Fleet) -> list[object]:
    """Hang up over HTTP and cancel over gRPC, each after a first event; return what is held a while later."""
    heard = asyncio.Event()
    http = fleet.client().ask(
        "gateway-0",
        "/v1/completions",
        body(6, stream=True, max_tokens=400),
        key=ACME,
        on_event=lambda _: heard.set(),
    )
    await heard.wait()
    http.cancel()
    long = request(PROMPT, max_tokens=400, ignore_eos=True)
    over_grpc_ = fleet.client().generate("gateway-1", long, key=ACME)
    await asyncio.sleep(0.1)
    over_grpc_.cancel()
    held_before = await fleet.held(["decode-0"])
    await asyncio.sleep(1.0)
    return [bool(held_before), *await fleet.held(WORKERS + GATEWAYS)]


async def ask_a_paused_retriever(fleet: Fleet) -> Answer:
    retriever = fleet.world.nodes["retriever-0"]
    retriever.pause()
    try:
        return await fleet.client().generate("gateway-0", question(may_degrade=True), key=ACME)
    finally:
        retriever.resume()


async def ask_without_a_retriever(fleet: Fleet) -> tuple[Answer, Answer]:
    """Ask for what may do without passages, and for what may not; the retriever dies before it answers."""
    fleet.world.nodes["retriever-0"].pause()
    asked = [
        fleet.client().generate("gateway-0", question(may_degrade=may_degrade), key=ACME, timeout_s=20.0)
        for may_degrade in (True, False)
    ]
    await asyncio.sleep(0.05)
    fleet.crash("retriever-0")
    first, second = [await call for call in asked]
    return first, second


async def ask_a_new_retriever(fleet: Fleet) -> Answer:
    fleet.start("retriever-0")
    await asyncio.sleep(2.0)
    return await fleet.client().generate("gateway-0", question(), key=ACME)


@pytest.fixture(scope="module")
def story(places: Places) -> Iterator[Story]:
    with fleet_of(1, places.model, places.settings) as fleet:
        yield fleet.world.run(tell(fleet), limit_s=LIMIT_S)


def test_both_edges_give_the_same_text_and_one_end(story: Story) -> None:
    assert story.grpc.ends == 1
    assert story.grpc.outcome == "finished"
    assert story.grpc.positions == list(range(len(PROMPT), len(PROMPT) + 12))
    assert story.stream.text == story.whole.text == story.grpc.text != ""
    assert story.stream.finish_reasons == story.whole.finish_reasons == ["length"]
    assert (story.stream.status, story.stream.done_marks, story.stream.whole) == (200, 1, True)


def test_who_leaves_lets_go_of_everything(story: Story) -> None:
    assert story.left == [True]


def test_a_deadline_is_kept_for_the_client(story: Story) -> None:
    assert story.late.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert story.late.ends <= 1
    assert story.late_over_http.status == 504
    assert story.late_over_http.whole


def test_health_needs_no_key_and_everything_else_does(story: Story) -> None:
    assert (story.health.status, story.health.body) == (200, b"ok\n")
    over_grpc_, over_http = story.nobody
    assert over_grpc_.status is grpc.StatusCode.UNAUTHENTICATED
    assert over_grpc_.ends == 1
    assert over_http.status == 401


def test_kv_is_shared_within_a_tenant_alone(story: Story) -> None:
    assert story.same_tenant.end is not None
    assert story.other_tenant.end is not None
    assert story.same_tenant.end.usage.cached_tokens > 0
    assert story.other_tenant.end.usage.cached_tokens == 0
    assert story.other_tenant.text == story.same_tenant.text


def test_a_kept_answer_is_for_its_tenant_alone(story: Story) -> None:
    assert story.found.prompt is not None
    assert story.kept.prompt is not None
    assert story.found_by_another.prompt is not None
    assert story.kept.prompt.cached.request_id == story.found.prompt.request_id
    assert not story.found_by_another.prompt.HasField("cached")
    assert story.found_by_another.text == story.kept.text == story.found.text


def test_passages_come_from_the_real_retriever(story: Story) -> None:
    assert story.found.outcome == "finished"
    assert story.found.prompt is not None
    assert not story.found.prompt.degraded
    assert "gated pipe" in story.found.prompt.passages[0].text


def test_without_a_retriever_a_request_degrades_or_says_why(story: Story) -> None:
    for degraded in (story.retriever_paused, story.retriever_gone[0]):
        assert degraded.outcome == "finished"
        assert degraded.prompt is not None
        assert degraded.prompt.degraded == "retrieval"
    strict = story.retriever_gone[1]
    assert strict.outcome in {"failed", "expired"}
    assert strict.ends == 1
    assert strict.end is not None
    assert strict.end.error.hop == "retriever"
    assert story.retriever_back.text == story.found.text


def test_a_corpus_of_a_tenant_is_nobody_elses(story: Story) -> None:
    own, foreign = story.private
    assert own.prompt is not None
    assert "secret plan" in own.prompt.passages[0].text
    assert foreign.outcome == "failed"
    assert foreign.status is grpc.StatusCode.NOT_FOUND


def test_a_key_is_counted_across_gateways(story: Story) -> None:
    outcomes = sorted(answer.outcome for answer in story.metered)
    assert outcomes == ["finished"] * REQUESTS_PER_MIN + ["shed"] * 2
    assert all(answer.ends == 1 for answer in story.metered)
