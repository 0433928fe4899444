"""When workers refuse, die, stall or lose tokens the stream goes on, or ends clearly."""

from __future__ import annotations

import asyncio

import grpc

from shared.errors import InvalidRequest, Overloaded
from shared.kv_hash import block_hashes, hash_seed
from shared.messages import Message, Open, Prefill, Reserve, unpack_hashes, unpack_ids
from tests.integration.gateway_peers import MODEL, Answer, ask, default_answer, fleet, gateway
from tests.support.client import generate
from tests.support.wait import until


async def test_a_full_worker_is_replaced_by_another_under_a_new_epoch(nats_url: str) -> None:
    full = Overloaded("no blocks left", hop="decode")

    def decode(message: Message) -> Answer:
        return full if isinstance(message, Reserve) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = decode
        await peers.add("decode", 1, live=7)  # the busier one is the second choice
        await running.knows("decode", 2)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, message = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 5, "a", epoch=2, finish="stop")
        answer = await call
        await until(lambda: len(peers.cancels()) == 2)
    assert answer.outcome == "finished"
    assert answer.end is not None
    assert answer.end.usage.replacements == 0
    assert message.decode == "decode-1"
    # The one that refused holds nothing, so it is not told.
    assert peers.cancels() == {"prefill-0": [(1, "replaced")], "detokenizer-0": [(1, "replaced")]}


async def test_a_fleet_that_stays_full_sheds_with_a_retry_hint(nats_url: str) -> None:
    full = Overloaded("no blocks left", hop="decode", retry_after_ms=70)

    def decode(message: Message) -> Answer:
        return full if isinstance(message, Reserve) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url, max_place_tries=3) as running:
        peers["decode-0"].answers = decode
        answer = await generate(running.stub, ask("hello"))
        assert len(peers["decode-0"].of(Reserve)) == 3
    assert (answer.outcome, answer.status) == ("shed", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert answer.end is not None
    assert answer.end.error.retry_after_ms == 70


async def test_what_a_worker_finds_invalid_is_final(nats_url: str) -> None:
    too_long = InvalidRequest("the prompt has 600 tokens: the model takes 512", hop="prefill")

    def prefill(message: Message) -> Answer:
        return too_long if isinstance(message, Prefill) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["prefill-0"].answers = prefill
        answer = await generate(running.stub, ask("hello"))
        await until(lambda: len(peers.cancels()) == 2)
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.INVALID_ARGUMENT)
    assert "512" in answer.details
    assert len(peers["prefill-0"].of(Prefill)) == 1
    assert set(peers.cancels()) == {"decode-0", "detokenizer-0"}


async def test_a_lost_request_goes_on_at_the_next_position_from_prompt_and_log(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello, what a long prompt", max_tokens=9)))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 25, "abc")
        await peers.lost(envelope.request_id, 1)
        _, message = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 28, "XX", epoch=1)  # a zombie's token
        await peers.text(envelope.request_id, 28, "de", epoch=2, finish="length")
        answer = await call
        opened = peers["detokenizer-0"].of(Open)[1][1]
        await until(lambda: len(peers.cancels()) == 3)
    ids = [ord(c) for c in "hello, what a long promptabc"]
    assert unpack_ids(message.token_ids) == ids
    assert unpack_hashes(message.block_hashes) == block_hashes(ids, hash_seed(MODEL))
    assert (message.prompt_len, message.sampling.max_tokens) == (25, 9)
    assert isinstance(opened, Open)
    assert (unpack_ids(opened.replay), opened.emitted_chars, opened.next_position) == (ids[25:], 3, 28)
    assert unpack_ids(opened.prompt_tail) == ids[:25]
    assert (answer.text, answer.positions) == ("abcde", [25, 26, 27, 28, 29])
    assert answer.end is not None
    assert answer.end.usage.replacements == 1
    assert all(told == [(1, "replaced")] for told in peers.cancels().values())


async def test_a_gap_in_the_positions_places_anew(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await peers.text(envelope.request_id, 7, "c")
        await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 6, "bc", epoch=2, finish="stop")
        answer = await call
    assert answer.text == "abc"


async def test_a_stalled_stream_is_placed_anew(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, stall_timeout_s=0.5) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 6, "b", epoch=2, finish="stop")
        answer = await call
    assert answer.text == "ab"


async def test_a_lost_decode_worker_moves_the_request_to_another(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("decode", 1, live=7)
        await running.knows("decode", 2)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, message = await peers.placed()
        assert message.decode == "decode-0"
        await peers.text(envelope.request_id, 5, "ab")
        await peers["decode-0"].stop()
        _, message = await peers.placed(epoch=2)
        assert message.decode == "decode-1"
        await peers.text(envelope.request_id, 7, "c", epoch=2, finish="stop")
        answer = await call
    assert answer.text == "abc"


async def test_a_last_row_that_comes_while_a_new_place_is_sought_ends_the_request(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await peers["decode-0"].stop()
        await until(lambda: len(peers.cancels()) == 3)
        await peers.text(envelope.request_id, 6, "b", finish="stop")
        await peers.bus.flush()
        await peers.add("decode", 1)
        answer = await call
    assert (answer.text, answer.outcome) == ("ab", "finished")
    assert peers["decode-1"].of(Reserve) == []


async def test_a_prefill_worker_lost_after_its_transfer_changes_nothing(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        await peers["prefill-0"].stop()
        await running.knows("prefill", 0)
        await peers.text(envelope.request_id, 7, "c", finish="stop")
        answer = await call
    assert (answer.text, answer.outcome) == ("abc", "finished")
    assert answer.end is not None
    assert answer.end.usage.replacements == 0


async def test_a_prefill_worker_lost_before_the_second_token_places_anew(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("prefill", 1, queued_tokens=500)
        await running.knows("prefill", 2)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await peers["prefill-0"].stop()
        await peers.placed(epoch=2, prefill="prefill-1")
        await peers.text(envelope.request_id, 6, "b", epoch=2, finish="stop")
        answer = await call
    assert answer.text == "ab"


async def test_a_request_that_keeps_failing_ends_as_failed(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, max_replacements=1) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.lost(envelope.request_id, 1, "internal")
        await peers.placed(epoch=2)
        await peers.lost(envelope.request_id, 2, "internal")
        answer = await call
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.UNAVAILABLE)


async def test_a_request_that_every_worker_calls_too_late_ends_as_expired(nats_url: str) -> None:
    """Workers predict that they cannot do it in time long before the time is up."""
    async with fleet(nats_url) as peers, gateway(nats_url, max_replacements=1) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        for epoch in (1, 2):
            envelope, _ = await peers.placed(epoch=epoch)
            await peers.lost(envelope.request_id, epoch, "expired")
        answer = await call
    assert (answer.outcome, answer.status) == ("expired", grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_an_answer_that_nothing_can_continue_fails_behind_its_text(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello", regex="a+")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        await peers.text(envelope.request_id, 7, "", ids=(), finish="error")
        answer = await call
        assert await until(lambda: len(peers.cancels()) == 3)
    assert (answer.text, answer.outcome, answer.ends) == ("ab", "failed", 1)
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_restarting_worker_is_waited_for(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        await until(lambda: running.registry.audit().held)
        await peers.add("decode")
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"


async def test_a_fleet_without_decode_fails_after_a_bounded_wait(nats_url: str) -> None:
    async with (
        fleet(nats_url, "tokenizer", "prefill", "detokenizer"),
        gateway(nats_url, admit_wait_s=0.1) as running,
    ):
        answer = await generate(running.stub, ask("hello"))
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.UNAVAILABLE)
    assert answer.end is not None
    assert answer.end.error.hop == "decode"
