"""A gateway that leaves prompts to decode workers: when it does, what it sends, and how it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.errors import Overloaded
from shared.messages import (
    Mark,
    Message,
    Open,
    Prefill,
    PromptLogprobs,
    Reserve,
    pack_hashes,
    unpack_ids,
)
from shared.sampling.parameters import NO_LOGPROBS, TokenLogprob
from tests.integration.gateway_peers import (
    GATEWAY,
    Answer,
    Fleet,
    Running,
    ask,
    default_answer,
    fleet,
    gateway,
)
from tests.support import metric
from tests.support.block_hashes import hashes_of
from tests.support.client import Answer as Answered
from tests.support.client import generate
from tests.support.heartbeats import heartbeat_with
from tests.support.wait import until

SHORT = "hello"
LONG = "a long prompt, " * 40


@asynccontextmanager
async def serving(nats_url: str, **options: object) -> AsyncIterator[tuple[Fleet, Running]]:
    settings = {"local_prefill_tokens": 512, **options}
    async with fleet(nats_url) as peers, gateway(nats_url, **settings) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        yield peers, running


async def says(peers: Fleet, running: Running, instance: str, **fields: object) -> None:
    """Until the gateway has heard it."""
    peer = peers[instance]
    peer.say(**fields)

    def heard() -> bool:
        view = running.fleet.get(peer.role, instance)
        return view is not None and heartbeat_with(view.heartbeat, **fields) == view.heartbeat

    await until(heard)


async def finish(
    peers: Fleet, call: asyncio.Task[Answered], request_id: str, at: int, epoch: int = 1
) -> Answered:
    await peers.text(request_id, at, "a", epoch=epoch, finish="stop")
    return await call


def begin(running: Running, message: pb.GenerateRequest) -> asyncio.Task[Answered]:
    return asyncio.create_task(generate(running.stub, message))


def routes(path: str) -> float:
    return metric.value("penstock_routing_decisions_total", path=path)


# ---- what is sent ----


async def test_a_short_prompt_of_an_idle_fleet_is_left_to_decode(nats_url: str) -> None:
    before = routes("local")
    async with serving(nats_url) as (peers, running):
        call = begin(running, ask(SHORT))
        envelope, reserve = await peers.routed_locally()
        answer = await finish(peers, call, envelope.request_id, 5)
        (_, opened) = peers["detokenizer-0"].of(Open)[0]
    assert answer.outcome == "finished"
    assert peers["prefill-0"].of(Prefill) == []
    assert unpack_ids(reserve.token_ids) == [ord(letter) for letter in SHORT]
    assert isinstance(opened, Open)
    assert (opened.prefill, opened.decode) == ("", "decode-0")
    assert 0 < reserve.first_token_us <= envelope.deadline_us
    assert answer.end is not None
    assert answer.end.usage.cached_tokens == 3  # as decode said
    assert routes("local") == before + 1


async def test_with_the_path_switched_off_every_prompt_goes_to_prefill(nats_url: str) -> None:
    before = routes("disaggregated")
    async with serving(nats_url, local_prefill_tokens=0) as (peers, running):
        call = begin(running, ask(SHORT))
        envelope, _ = await peers.placed()
        await finish(peers, call, envelope.request_id, 5)
    assert routes("disaggregated") == before + 1


async def test_its_phases_are_those_of_decode(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        call = begin(running, ask(SHORT))
        envelope, _ = await peers.routed_locally()
        marks = (Mark("decode.prefill_queue", 0), Mark("decode.prefill_compute", 1))
        await peers.text(envelope.request_id, 5, "a", marks=marks)
        answer = await finish(peers, call, envelope.request_id, 6)
    assert answer.end is not None
    names = [phase.name for phase in answer.end.timeline.phases]
    assert names[names.index("route") :] == [
        "route",
        "decode.prefill_queue",
        "decode.prefill_compute",
        "bus",
        "deliver",
        "decode",
        "finish",
    ]


# ---- when ----


async def test_a_long_prompt_is_not_computed_beside_streams(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        await says(
            peers, running, "decode-0", live=4, step_us=10_000, prompt_tokens_per_s=4000.0, transfer_us=90_000
        )
        call = begin(running, ask(LONG))
        envelope, _ = await peers.placed()
        await finish(peers, call, envelope.request_id, len(LONG))


async def test_the_next_turn_whose_prefix_is_at_decode_is_computed_there_beside_streams(
    nats_url: str,
) -> None:
    known = hashes_of([ord(letter) for letter in LONG])
    async with serving(nats_url) as (peers, running):
        await says(
            peers,
            running,
            "decode-0",
            live=4,
            step_us=10_000,
            prompt_tokens_per_s=4000.0,
            added=pack_hashes(known),
            prefix_event_id=len(known),
        )
        call = begin(running, ask(LONG + "and a little more"))
        envelope, _ = await peers.routed_locally()
        await finish(peers, call, envelope.request_id, len(LONG) + 17)


async def test_of_prompts_that_come_together_one_is_left_to_decode(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        calls = [begin(running, ask(SHORT)) for _ in range(4)]
        await until(lambda: len(peers["decode-0"].of(Reserve)) == 4)
        reserves = [message for _, message in peers["decode-0"].of(Reserve)]
        for envelope, _ in peers["decode-0"].of(Reserve):
            await peers.text(envelope.request_id, 5, "a", finish="stop")
        await asyncio.gather(*calls)
    assert sum(isinstance(one, Reserve) and not one.prefill for one in reserves) == 1
    assert len(peers["prefill-0"].of(Prefill)) == 3


async def test_who_asks_again_at_once_finds_the_decode_worker_free(nats_url: str) -> None:
    """Its heartbeat still shows the first request."""
    async with serving(nats_url) as (peers, running):
        first = begin(running, ask(SHORT))
        envelope, _ = await peers.routed_locally()
        await says(peers, running, "decode-0", live=1)
        beating = peers["decode-0"].beats._task
        assert beating is not None
        beating.cancel()  # or another heartbeat could come behind the end, and count anew
        await finish(peers, first, envelope.request_id, 5)
        peers["decode-0"].got.clear()
        second = begin(running, ask(SHORT))
        envelope, _ = await peers.routed_locally()
        await finish(peers, second, envelope.request_id, 5)


# ---- what goes wrong ----


async def test_a_decode_worker_that_refuses_a_prompt_is_replaced_by_another(nats_url: str) -> None:
    def decode(message: Message) -> Answer:
        return Overloaded("full", hop="decode") if isinstance(message, Reserve) else default_answer(message)

    async with serving(nats_url) as (peers, running):
        peers["decode-0"].answers = decode
        await peers.add("decode", 1, live=1, kv_blocks_free=900, capacity=1000)
        await running.knows("decode", 2)
        await says(peers, running, "decode-1", live=0, queued=1)
        call = begin(running, ask(SHORT))
        envelope, reserve = await peers.routed_locally(epoch=2)
        answer = await finish(peers, call, envelope.request_id, 5, epoch=2)
    assert answer.outcome == "finished"
    assert peers["decode-1"].of(Reserve) == [(envelope, reserve)]


async def test_a_decode_worker_that_dies_over_a_prompt_is_replaced_with_the_tokens_so_far(
    nats_url: str,
) -> None:
    async with serving(nats_url) as (peers, running):
        call = begin(running, ask(SHORT, max_tokens=9))
        envelope, _ = await peers.routed_locally()
        await peers.text(envelope.request_id, 5, "ab")
        await peers.add("decode", 1)
        await running.knows("decode", 2)
        await peers["decode-0"].stop()
        _, again = await peers.routed_locally(epoch=2)
        answer = await finish(peers, call, envelope.request_id, 7, epoch=2)
    assert answer.text == "aba"
    assert unpack_ids(again.token_ids) == [ord(letter) for letter in SHORT + "ab"]
    assert again.prompt_len == 5
    assert answer.end is not None
    assert answer.end.usage.replacements == 1


async def test_the_loss_of_a_prefill_worker_does_not_concern_it(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        call = begin(running, ask(SHORT))
        envelope, _ = await peers.routed_locally()
        await peers["prefill-0"].stop()
        await running.knows("prefill", 0)
        answer = await finish(peers, call, envelope.request_id, 5)
    assert answer.end is not None
    assert answer.end.usage.replacements == 0


async def test_a_deadline_that_passes_over_the_prompt_names_decode(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        message = ask(SHORT)
        message.ttft_deadline_ms = 1000
        call = begin(running, message)
        await peers.routed_locally()
        answer = await call
        await until(lambda: set(peers.cancels()) == {"decode-0", "detokenizer-0"})
    assert answer.outcome == "expired"
    assert answer.end is not None
    assert answer.end.error.hop == "decode"


# ---- log-probabilities of the prompt ----


async def test_how_likely_the_prompt_was_is_heard_from_decode_alone(nats_url: str) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="foreign_text")
    async with serving(nats_url) as (peers, running):
        call = begin(running, ask(SHORT, prompt_logprobs=0))
        envelope, reserve = await peers.routed_locally()
        told = PromptLogprobs(1, tuple(_scores(SHORT)))
        for sender in ("prefill-0", "decode-0"):
            await publish_as(sender, nats_url, told, envelope.request_id)
        answer = await finish(peers, call, envelope.request_id, 5)
    assert reserve.sampling.prompt_logprobs != NO_LOGPROBS
    assert [each.token_id for each in answer.prompt_logprobs] == [ord(letter) for letter in SHORT]
    assert metric.value("penstock_dropped_messages_total", reason="foreign_text") == before + 1


async def publish_as(sender: str, nats_url: str, message: Message, request_id: str) -> None:
    bus = await Bus.connect(nats_url, name=sender, sender=sender)
    try:
        await bus.publish(inbox("gateway", GATEWAY), message, bus.envelope(request_id, 1))
        await bus.flush()
    finally:
        await bus.close()


def _scores(text: str) -> Iterable[TokenLogprob]:
    return (TokenLogprob(ord(letter), -1.0, ()) for letter in text[1:])
