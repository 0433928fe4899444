"""A request's way through the gateway, on a real bus and a real gRPC channel."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest, Overloaded, Unavailable
from shared.messages import (
    Mark,
    Message,
    Open,
    Reserve,
    Retrieve,
    Retrieved,
    ScoredPassage,
    Tokenize,
    unpack_ids,
)
from shared.sampling.parameters import TokenLogprob
from tests.integration.gateway_peers import GATEWAY, ask, default_answer, fleet, gateway
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.support.client import CALL_TIMEOUT_S, generate
from tests.support.metric import total
from tests.support.wait import until

LATE_ROWS = 400
ROW_CHARS = 8_000
"""All rows together are more than the client's window lets through, and less than it takes in one event."""


async def test_text_streams_in_order_and_ends_in_one_terminal_event(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello", seed=9, max_tokens=4)))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        await peers.text(envelope.request_id, 7, "cd", finish="length")
        answer = await call
    assert answer.prompt is not None
    assert (answer.prompt.prompt_tokens, answer.prompt.seed, answer.prompt.model) == (5, 9, "test-model")
    assert (answer.text, answer.positions) == ("abcd", [5, 6, 7, 8])
    assert (answer.outcome, answer.finish_reason, answer.ends) == ("finished", "length", 1)
    assert answer.status is grpc.StatusCode.OK
    assert answer.end is not None
    assert (answer.end.usage.completion_tokens, answer.end.usage.cached_tokens) == (4, 3)


async def test_the_three_workers_are_told_the_same_placement(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("speculator")
        await running.knows("speculator", 1)
        message = ask("hello", stop=["x"], max_tokens=4)
        message.priority = pb.PRIORITY_HIGH
        call = asyncio.create_task(generate(running.stub, message))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
        reserve = peers["decode-0"].of(Reserve)[0][1]
        opened = peers["detokenizer-0"].of(Open)[0][1]
    assert isinstance(reserve, Reserve)
    assert isinstance(opened, Open)
    assert envelope.request_id.startswith(GATEWAY + ".")
    assert envelope.origin == GATEWAY
    assert envelope.deadline_us > 0
    assert (prefill.decode, prefill.detokenizer, prefill.priority) == ("decode-0", "detokenizer-0", 2)
    assert (reserve.prefill, reserve.speculator, reserve.prompt_len) == ("prefill-0", "speculator-0", 5)
    assert unpack_ids(reserve.token_ids) == unpack_ids(prefill.token_ids) == [ord(c) for c in "hello"]
    assert (opened.stop, opened.next_position, opened.replay, opened.emitted_chars) == (("x",), 5, b"", 0)
    assert unpack_ids(opened.prompt_tail) == [ord(c) for c in "hello"]


async def test_a_stop_string_ends_the_request_and_stops_decode_and_prefill(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello", stop=["\n"])))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        await peers.text(envelope.request_id, 7, "", ids=(10,), finish="stop_string")
        answer = await call
        await until(lambda: len(peers.cancels()) == 2)
    assert (answer.outcome, answer.finish_reason, answer.text) == ("finished", "stop", "ab")
    assert peers.cancels() == {"decode-0": [(1, "stop")], "prefill-0": [(1, "stop")]}


async def test_a_last_row_without_ids_brings_the_text_that_was_held_back(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "", ids=(1, 2))
        await peers.text(envelope.request_id, 7, "late", ids=(), finish="stop")
        answer = await call
    assert (answer.text, answer.ids) == ("late", [1, 2])


async def test_logprobs_reach_the_client(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = running.stub.Generate(ask("hello", logprobs=1))
        envelope, _ = await peers.placed()
        await peers.text(
            envelope.request_id, 5, "a", logprobs=(TokenLogprob(97, -0.5, ((97, -0.5),)),), finish="stop"
        )
        deltas = [event.text async for event in call if event.WhichOneof("event") == "text"]
    assert [(p.token_id, p.logprob, p.top[0].token_id) for p in deltas[0].logprobs] == [(97, -0.5, 97)]


@pytest.mark.parametrize("server", ["native", "grpcio"])
async def test_a_client_that_reads_late_gets_every_row_in_order(nats_url: str, server: str) -> None:
    texts = [f"<{number}>".ljust(ROW_CHARS, "x") for number in range(LATE_ROWS)]
    async with fleet(nats_url) as peers, gateway(nats_url, grpc_server=server) as running:
        call = running.stub.Generate(ask("hello", max_tokens=2 * LATE_ROWS), timeout=CALL_TIMEOUT_S)
        envelope, prefill = await peers.placed()
        for number, text in enumerate(texts):
            await peers.text(envelope.request_id, prefill.prompt_len + number, text, ids=(1,))
        session = running.registry.live_sessions(1)[0]
        await until(lambda: len(session.state.log.ids) == LATE_ROWS)
        end = prefill.prompt_len + LATE_ROWS
        await peers.text(envelope.request_id, end, "", ids=(), finish="length")
        events = [event.text async for event in call if event.HasField("text")]
    assert "".join(event.text for event in events) == "".join(texts)
    ids = [event.position + place for event in events for place in range(len(event.token_ids))]
    assert ids == list(range(prefill.prompt_len, end))


async def test_duplicate_and_old_rows_are_not_relayed(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        await peers.text(envelope.request_id, 5, "ab")
        await peers.text(envelope.request_id, 7, "zz", epoch=0)
        await peers.text(envelope.request_id, 7, "c", finish="stop")
        answer = await call
    assert (answer.text, answer.positions) == ("abc", [5, 6, 7])


async def test_the_timeline_partitions_what_the_client_waited_for(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        marks = (Mark("prefill.queue", 1), Mark("prefill.compute", 2), Mark("detokenize", 3))
        await peers.text(envelope.request_id, 5, "a", marks=marks)
        await peers.text(envelope.request_id, 6, "b", marks=(Mark("kv.transfer", 4), Mark("decode.queue", 5)))
        counts = (
            *(Mark("count:draft_proposed", 8), Mark("count:draft_accepted", 6)),
            *(Mark("count:ngram_proposed", 5), Mark("count:ngram_accepted", 4)),
        )
        await peers.text(envelope.request_id, 7, "c", finish="stop", marks=counts)
        answer = await call
    assert answer.end is not None
    timeline, usage = answer.end.timeline, answer.end.usage
    at_us = 0
    for phase in timeline.phases:
        assert phase.start_us == at_us
        at_us += phase.duration_us
    assert at_us == timeline.total_us
    names = [phase.name for phase in timeline.phases]
    assert names[:3] == ["admit", "tokenize", "route"]
    assert {"prefill.queue", "prefill.compute", "detokenize", "bus", "deliver", "decode", "finish"} <= set(
        names
    )
    assert (usage.draft_tokens, usage.accepted_draft_tokens) == (8, 6)
    assert (usage.ngram_draft_tokens, usage.accepted_ngram_draft_tokens) == (5, 4)


async def test_retrieved_passages_go_into_the_last_user_turn_and_to_the_client(nats_url: str) -> None:
    found = Retrieved((ScoredPassage("doc.md", "Water flows.", 0.5),), "", 1, 1)

    def retriever(message: Message) -> PeerAnswer:
        return found if isinstance(message, Retrieve) else default_answer(message)

    async with (
        fleet(nats_url, "tokenizer", "prefill", "decode", "detokenizer", "retriever") as peers,
        gateway(nats_url) as running,
    ):
        peers["retriever-0"].answers = retriever
        await running.knows("retriever", 1)
        message = ask("what flows?")
        message.retrieval.enabled = True
        call = asyncio.create_task(generate(running.stub, message))
        envelope, prefill = await peers.placed()
        asked = peers["tokenizer-0"].of(Tokenize)[0][1]
        first = len(unpack_ids(prefill.token_ids))
        await peers.text(envelope.request_id, first, "a", finish="stop")
        answer = await call
    assert isinstance(asked, Tokenize)
    assert asked.template_optional
    assert (asked.chat[-1].content, asked.passages) == ("what flows?", ("Water flows.",))
    assert answer.prompt is not None
    assert [(p.source, p.text) for p in answer.prompt.passages] == [("doc.md", "Water flows.")]
    assert answer.prompt.degraded == ""


async def test_without_a_retriever_an_allowed_request_goes_on_and_says_so(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, admit_wait_s=0.1) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        message = ask("what flows?")
        message.retrieval.enabled = True
        call = asyncio.create_task(generate(running.stub, message))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 11, "a", finish="stop")
        answer = await call
    assert answer.prompt is not None
    assert answer.prompt.degraded == "retrieval"
    assert answer.outcome == "finished"


async def test_without_a_retriever_a_request_that_may_not_degrade_fails(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, admit_wait_s=0.1) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        message = ask("what flows?")
        message.retrieval.enabled = True
        message.retrieval.may_degrade = False
        answer = await generate(running.stub, message)
        assert not peers["tokenizer-0"].of(Tokenize)
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.UNAVAILABLE)
    assert answer.end is not None
    assert answer.end.error.hop == "retriever"


async def test_a_failing_tokenizer_is_replaced_by_another(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("tokenizer", 1)
        await running.knows("tokenizer", 2)
        peers["tokenizer-0"].answers = lambda _: Unavailable("broken")
        for _ in range(2):
            call = asyncio.create_task(generate(running.stub, ask("hello")))
            envelope, _ = await peers.placed()
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            assert (await call).outcome == "finished"
            peers["prefill-0"].got.clear()
        assert peers["tokenizer-0"].of(Tokenize)


async def test_a_tokenizer_that_dies_while_it_is_asked_is_replaced_at_once(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["tokenizer-0"].answers = lambda _: None
        await running.knows("tokenizer", 1)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        await until(lambda: peers["tokenizer-0"].of(Tokenize))
        await peers["tokenizer-0"].stop()
        await peers.add("tokenizer", 1)
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"


async def test_a_full_tokenizer_is_asked_again(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:

        def once_full(message: Message) -> PeerAnswer:
            full = len(peers["tokenizer-0"].of(Tokenize)) == 1
            return Overloaded("mailbox full") if full else default_answer(message)

        peers["tokenizer-0"].answers = once_full
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"


async def test_every_request_is_counted_once_by_its_outcome(nats_url: str) -> None:
    def counted(outcome: str) -> float:
        return total("penstock_requests_total", outcome=outcome)

    before = {outcome: counted(outcome) for outcome in ("finished", "cancelled", "failed")}
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
        await generate(running.stub, pb.GenerateRequest())
        dropped = running.stub.Generate(ask("hello"))
        await dropped.read()
        dropped.cancel()
        await until(lambda: counted("cancelled") > before["cancelled"])
    assert {outcome: counted(outcome) - before[outcome] for outcome in before} == dict.fromkeys(before, 1.0)


async def test_what_the_models_tokenizer_refuses_is_final(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["tokenizer-0"].answers = lambda _: InvalidRequest(
            "chat: this model has no template", hop="tokenizer"
        )
        answer = await generate(running.stub, ask("hello"))
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.INVALID_ARGUMENT)
    assert "no template" in answer.details
    assert len(peers["tokenizer-0"].of(Tokenize)) == 1
