"""While passages are found, whoever is likely to get the prompt is asked to warm what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.subjects import inbox
from shared.degradation import DegradationLevel
from shared.messages import (
    NO_ADAPTER,
    WARM_EPOCH,
    AdapterId,
    AdapterReport,
    Envelope,
    FoundFirst,
    Message,
    Retrieve,
    Retrieved,
    ScoredPassage,
    Tokenize,
    Tokenized,
    Warm,
    pack_hashes,
    pack_ids,
    unpack_hashes,
    unpack_ids,
)
from tests.integration.gateway_peers import GATEWAY, Answer, Fleet, Running, default_answer, fleet, gateway
from tests.support.block_hashes import hashes_of
from tests.support.client import generate
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever")
HISTORY = "a system prompt that is known before anything is found; " * 4
QUESTION = "which one?"
ONE, OTHER = (ScoredPassage("a.md", text * 100, 1.0) for text in "xy")


def ids_of(message: Tokenize) -> list[int]:
    """One token per character; passages stand before the last turn."""
    turns = [turn.content for turn in message.chat]
    return [ord(c) for c in "".join([*turns[:-1], *message.passages, turns[-1]])]


def tokenized(message: Message) -> Answer:
    if not isinstance(message, Tokenize):
        return default_answer(message)
    ids = ids_of(message)
    hashes = pack_hashes(hashes_of(ids, message.layout, message.tenant, message.adapter))
    places = tuple(range(1, len(message.passages) + 1))
    return Tokenized(pack_ids(ids), hashes, passage_places=places)


def silent(message: Message) -> Answer:
    return None if isinstance(message, Retrieve) else default_answer(message)


def asking(history: str = HISTORY) -> pb.GenerateRequest:
    request = pb.GenerateRequest()
    request.chat.messages.add(role="system", content=history)
    request.chat.messages.add(role="user", content=QUESTION)
    request.retrieval.enabled = True
    request.retrieval.may_degrade = False
    request.sampling.seed = 1
    return request


@dataclass(slots=True)
class Warmed:
    """A request whose retriever waits for the test."""

    peers: Fleet
    running: Running
    call: asyncio.Task[object]
    question: Envelope
    retrieve: Retrieve

    async def find_first(self, *passages: ScoredPassage, epoch: int = 0) -> None:
        envelope = self.peers.bus.envelope(self.question.request_id, epoch or self.question.epoch)
        await self.peers.bus.publish(inbox("gateway", GATEWAY), FoundFirst(passages), envelope)

    async def find(self, *passages: ScoredPassage) -> None:
        await self.peers.bus.reply(self.question, Retrieved(passages, "", 1, 1))

    async def warm(self, count: int = 1, instance: str = "prefill-0") -> tuple[Envelope, Warm]:
        """The last of so many."""
        peer = self.peers[instance]
        await until(lambda: len(peer.of(Warm)) == count)
        envelope, message = peer.of(Warm)[-1]
        assert isinstance(message, Warm)
        return envelope, message

    def longest_warmed(self, instance: str = "prefill-0") -> int:
        """Tokens."""
        warms = (message for _, message in self.peers[instance].of(Warm) if isinstance(message, Warm))
        return max((len(warm.token_ids) // 4 for warm in warms), default=0)

    async def finish(self, prefill: str = "prefill-0") -> Sequence[int]:
        """The ids of the prompt as it was placed."""
        _, placed = await self.peers.placed(prefill=prefill)
        ids = unpack_ids(placed.token_ids)
        await self.peers.text(self.question.request_id, len(ids), "a", finish="stop")
        await self.call
        return ids

    def cancels(self, instance: str = "prefill-0") -> list[tuple[int, str]]:
        return self.peers.cancels().get(instance, [])


@asynccontextmanager
async def warmed(
    nats_url: str, request: pb.GenerateRequest | None = None, *, prefills: int = 1, **options: object
) -> AsyncIterator[Warmed]:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, **options) as running:
        for number in range(1, prefills):
            await peers.add("prefill", number)
        for role in ROLES:
            await running.knows(role, prefills if role == "prefill" else 1)
        peers["tokenizer-0"].answers = tokenized
        peers["retriever-0"].answers = silent
        call: asyncio.Task[object] = asyncio.create_task(generate(running.stub, request or asking()))
        await until(lambda: peers["retriever-0"].of(Retrieve))
        ((envelope, retrieve),) = peers["retriever-0"].of(Retrieve)
        assert isinstance(retrieve, Retrieve)
        try:
            yield Warmed(peers, running, call, envelope, retrieve)
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)


def full_blocks(text: str) -> list[int]:
    return [ord(c) for c in text[: len(text) // 16 * 16]]


# ---- the head ----


async def test_what_stands_before_any_passage_is_warmed_while_they_are_found(nats_url: str) -> None:
    async with warmed(nats_url) as it:
        envelope, warm = await it.warm()
        head = full_blocks(HISTORY)
        assert unpack_ids(warm.token_ids) == head
        assert unpack_hashes(warm.block_hashes) == hashes_of(head, "", "", "")
        assert (envelope.request_id, envelope.epoch) == (it.question.request_id, WARM_EPOCH)
        assert (warm.gateway, warm.adapter, it.retrieve.send_first_passages) == (GATEWAY, NO_ADAPTER, False)
        assert envelope.deadline_us > 0
        await it.find(ONE)
        assert (await it.finish())[: len(head)] == head
        assert it.cancels() == []  # where it was warmed, its prompt takes its place


@pytest.mark.thorough(but="few tokens | off")
@pytest.mark.parametrize(
    ("request_", "options"),
    [
        (asking(), {"warm_while_retrieving": "off"}),
        (asking("short"), {}),
        (asking(), {"warm_min_tokens": 16 * (len(HISTORY) // 16 + 1)}),
    ],
    ids=["off", "short", "few tokens"],
)
async def test_nothing_is_warmed_that_is_not_worth_it(
    nats_url: str, request_: pb.GenerateRequest, options: dict[str, Any]
) -> None:
    async with warmed(nats_url, request_, **options) as it:
        await it.find(ONE)
        await it.finish()
        assert it.peers["prefill-0"].of(Warm) == []


async def test_a_head_of_just_the_fewest_tokens_is_warmed(nats_url: str) -> None:
    async with warmed(nats_url, warm_min_tokens=len(HISTORY) // 16 * 16) as it:
        await it.warm()


async def test_a_prompt_whose_log_probabilities_are_wanted_is_not_warmed(nats_url: str) -> None:
    request = asking()
    request.sampling.prompt_logprobs = 1
    async with warmed(nats_url, request) as it:
        assert it.peers["tokenizer-0"].of(Tokenize) == []


async def test_nothing_is_warmed_under_pressure(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        for role in ROLES:
            await running.knows(role, 1)
        running.degrade(DegradationLevel.SHORT_DRAFTS)
        peers["retriever-0"].answers = silent
        call = asyncio.create_task(generate(running.stub, asking()))
        await until(lambda: peers["retriever-0"].of(Retrieve))
        assert peers["tokenizer-0"].of(Tokenize) == []
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_worker_that_has_something_to_do_is_left_alone(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        for role in ROLES:
            await running.knows(role, 1)
        peers["prefill-0"].say(queued_tokens=100)
        await until(lambda: running.fleet.instances("prefill")[0].heartbeat.worker.queued_tokens == 100)
        peers["tokenizer-0"].answers = tokenized
        peers["retriever-0"].answers = silent
        call = asyncio.create_task(generate(running.stub, asking()))
        await until(lambda: len(peers["tokenizer-0"].of(Tokenize)) == 2)
        ((question, _),) = peers["retriever-0"].of(Retrieve)
        await peers.bus.reply(question, Retrieved((ONE,), "", 1, 1))
        _, placed = await peers.placed()
        await peers.text(question.request_id, len(placed.token_ids) // 4, "a", finish="stop")
        await call
        assert peers["prefill-0"].of(Warm) == []


async def test_a_prompt_that_decode_would_compute_is_warmed_there(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, local_prefill_tokens=4096) as running:
        for role in ROLES:
            await running.knows(role, 1)
        peers["decode-0"].say(prompt_tokens_per_s=10_000.0)
        await until(lambda: running.fleet.instances("decode")[0].heartbeat.decode.prompt_tokens_per_s)
        peers["tokenizer-0"].answers = tokenized
        peers["retriever-0"].answers = silent
        call = asyncio.create_task(generate(running.stub, asking()))
        await until(lambda: peers["decode-0"].of(Warm))
        assert peers["prefill-0"].of(Warm) == []
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_it_is_named_for_the_adapter_that_answers_from_passages_and_cancelled_where_there_are_none(
    nats_url: str,
) -> None:
    adapters = (AdapterReport("answers", 1, "digest", 8, ""),)
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, retrieval_adapter="answers") as running:
        for role in ROLES:
            await running.knows(role, 1)
        for role in ("prefill", "decode"):
            peers[f"{role}-0"].say(adapters=adapters)
        workers = [running.fleet.instances(role)[0] for role in ("prefill", "decode")]
        await until(lambda: all(view.heartbeat.worker.adapters for view in workers))
        peers["tokenizer-0"].answers = tokenized
        peers["retriever-0"].answers = silent
        call = asyncio.create_task(generate(running.stub, asking()))
        await until(lambda: peers["prefill-0"].of(Warm))
        ((_, warm),) = peers["prefill-0"].of(Warm)
        assert isinstance(warm, Warm)
        assert warm.adapter == AdapterId("answers", "digest")
        assert unpack_hashes(warm.block_hashes) == hashes_of(full_blocks(HISTORY), "", "", "digest")
        ((question, _),) = peers["retriever-0"].of(Retrieve)
        await peers.bus.reply(question, Retrieved((), "", 1, 1))
        _, placed = await peers.placed()
        assert placed.adapter == NO_ADAPTER
        assert peers.cancels() == {"prefill-0": [(WARM_EPOCH, "replaced")]}
        await peers.text(question.request_id, len(placed.token_ids) // 4, "a", finish="stop")
        await call


# ---- the likely prompt ----


async def test_the_prompt_of_the_first_order_is_warmed_while_it_is_looked_at_more_closely(
    nats_url: str,
) -> None:
    async with warmed(nats_url, warm_while_retrieving="likely") as it:
        assert it.retrieve.send_first_passages
        await it.warm()
        await it.find_first(ONE, OTHER)
        _, warm = await it.warm(2)
        asked = len(it.peers["tokenizer-0"].of(Tokenize))
        await it.find(ONE, OTHER)
        ids = await it.finish()
        assert unpack_ids(warm.token_ids) == ids[: len(ids) // 16 * 16]
        assert len(it.peers["tokenizer-0"].of(Tokenize)) == asked  # what was read is not read again
        assert it.cancels() == []


async def test_an_order_that_changes_cancels_what_was_warmed_for_the_first(nats_url: str) -> None:
    async with warmed(nats_url, warm_while_retrieving="likely") as it:
        await it.find_first(ONE, OTHER)
        await until(lambda: it.longest_warmed() > len(HISTORY))
        await it.find(OTHER, ONE)
        ids = await it.finish()
        assert "".join(map(chr, ids)) == HISTORY + OTHER.text + ONE.text + QUESTION
        assert it.cancels() == [(WARM_EPOCH, "replaced")]


async def test_what_is_told_after_the_answer_is_stale(nats_url: str) -> None:
    async with warmed(nats_url, warm_while_retrieving="likely", warm_min_tokens=len(HISTORY) + 1) as it:
        await it.find(ONE)
        await it.peers.placed()
        await it.find_first(OTHER)
        await it.finish()
        assert it.peers["prefill-0"].of(Warm) == []


async def test_what_another_question_found_is_not_this_ones(nats_url: str) -> None:
    async with warmed(nats_url, warm_while_retrieving="likely", warm_min_tokens=len(HISTORY) + 1) as it:
        await it.find_first(OTHER, epoch=it.question.epoch + 100)
        await it.find_first(ONE)
        _, warm = await it.warm()
        assert chr(unpack_ids(warm.token_ids)[len(HISTORY)]) == ONE.text[0]


# ---- ends ----


async def test_a_client_that_leaves_cancels_what_is_warmed_for_it(nats_url: str) -> None:
    async with warmed(nats_url) as it:
        await it.warm()
        it.call.cancel()
        await until(lambda: not it.running.registry.audit().held)
        ((epoch, reason),) = it.cancels()
        assert (epoch >= WARM_EPOCH, reason) == (True, "cancelled")


async def test_a_client_that_leaves_is_charged_what_was_to_be_computed_for_it(nats_url: str) -> None:
    async with warmed(nats_url) as it:
        (session,) = it.running.registry._live.values()
        _, warm = await it.warm()
        it.call.cancel()
        await until(lambda: not it.running.registry.audit().held)
        assert session.state.used_tokens == len(unpack_ids(warm.token_ids)) > 0


async def test_a_head_that_is_known_only_when_retrieval_has_ended_is_not_warmed(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        for role in ROLES:
            await running.knows(role, 1)
        tokenizer, retriever = peers["tokenizer-0"], peers["retriever-0"]
        tokenizer.answers = lambda _: None
        retriever.answers = silent
        call = asyncio.create_task(generate(running.stub, asking()))
        await until(lambda: retriever.of(Retrieve) and tokenizer.of(Tokenize))
        ((probed, probe),) = tokenizer.of(Tokenize)
        tokenizer.answers = tokenized
        await peers.bus.reply(retriever.of(Retrieve)[0][0], Retrieved((ONE,), "", 1, 1))
        _, placed = await peers.placed()
        answer = tokenized(probe)
        assert isinstance(answer, Tokenized)
        await peers.bus.reply(probed, answer)
        await peers.text(probed.request_id, len(placed.token_ids) // 4, "a", finish="stop")
        await call
        asked = [message.passages for _, message in tokenizer.of(Tokenize) if isinstance(message, Tokenize)]
        assert asked == [("a",), (ONE.text,)]


async def test_where_nothing_is_found_the_head_is_of_use_all_the_same(nats_url: str) -> None:
    async with warmed(nats_url) as it:
        await it.warm()
        await it.find()
        await it.finish()
        assert it.cancels() == []


async def test_a_prompt_that_is_placed_elsewhere_cancels_what_is_warmed(nats_url: str) -> None:
    async with warmed(nats_url, prefills=2) as it:
        await until(lambda: any(it.peers[f"prefill-{n}"].of(Warm) for n in range(2)))
        names = ("prefill-0", "prefill-1")
        names = ("prefill-0", "prefill-1")
        first, other = sorted(names, key=lambda name: len(it.peers[name].of(Warm)), reverse=True)
        it.peers[first].say(queued_tokens=100_000)
        await until(
            lambda: any(v.heartbeat.worker.queued_tokens for v in it.running.fleet.instances("prefill"))
        )
        await it.find(ONE)
        await it.finish(prefill=other)
        await until(lambda: it.cancels(first) == [(WARM_EPOCH, "replaced")])


async def test_a_prompt_that_engines_fail_over_takes_down_one_and_the_one_that_was_to_warm_it(
    nats_url: str,
) -> None:
    async with warmed(nats_url) as it:
        await it.warm()
        await it.peers.lost(it.question.request_id, WARM_EPOCH, "engine_fault")
        session = it.running.registry._live[it.question.request_id]
        await until(lambda: session._crash_record.strikes == 1)
        await it.find(ONE)
        await it.peers.placed()
        await it.peers.lost(it.question.request_id, 1, "engine_fault")
        answer = await it.call
        assert getattr(answer, "outcome", "") == "failed"
        assert session.state.epoch == 1


async def test_a_worker_that_dies_of_what_it_was_to_warm_is_a_strike(nats_url: str) -> None:
    async with warmed(nats_url, warm_while_retrieving="likely") as it:
        await it.warm()
        session = it.running.registry._live[it.question.request_id]
        it.peers["prefill-0"].say(incarnation=2)  # without a word
        await until(lambda: session._crash_record.strikes == 1)
        asked = len(it.peers["tokenizer-0"].of(Tokenize))
        await it.find_first(ONE)
        await until(lambda: len(it.peers["tokenizer-0"].of(Tokenize)) > asked)
        await it.find(ONE)
        await it.finish()
        assert len(it.peers["prefill-0"].of(Warm)) == 1  # the next one is left alone


@pytest.mark.thorough
async def test_another_workers_last_words_of_what_it_was_not_asked_for_are_no_strike(nats_url: str) -> None:
    async with warmed(nats_url, warm_while_retrieving="off") as it:
        await it.peers.lost(it.question.request_id, WARM_EPOCH, "engine_fault")
        await it.find(ONE)
        session = it.running.registry._live[it.question.request_id]
        await it.finish()
        assert session._crash_record.strikes == 0
