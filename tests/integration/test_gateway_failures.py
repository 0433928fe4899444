"""When workers refuse, die, stall or lose tokens the stream goes on, or ends clearly."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from services.gateway.session.request_walk import LATE_S
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import InvalidRequest, Overloaded
from shared.messages import Lost, Message, Open, Prefill, Reserve, Text, Tokenize, unpack_hashes, unpack_ids
from tests.integration.gateway_peers import GATEWAY, Answer, ask, default_answer, fleet, gateway
from tests.support import metric
from tests.support.block_hashes import hashes_of
from tests.support.client import Answer as Answered
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


async def test_a_fleet_that_stays_full_sheds_with_its_hint_before_the_deadline(nats_url: str) -> None:
    full = Overloaded("no blocks left", hop="decode", retry_after_ms=700)

    def decode(message: Message) -> Answer:
        return full if isinstance(message, Reserve) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        peers["decode-0"].answers = decode
        request = ask("hello")
        request.ttft_deadline_ms = 2000
        answer = await generate(running.stub, request)
    assert (answer.outcome, answer.status) == ("shed", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert answer.end is not None
    assert answer.end.error.retry_after_ms == 700


@pytest.mark.thorough(but="tokenizer-0-Tokenize | decode-0-Reserve")
@pytest.mark.parametrize(
    ("instance", "asked"),
    [("tokenizer-0", Tokenize), ("decode-0", Reserve), ("prefill-0", Prefill), ("detokenizer-0", Open)],
)
async def test_a_retry_hint_of_zero_never_reaches_a_client(
    nats_url: str, instance: str, asked: type[Message]
) -> None:
    def full(message: Message) -> Answer:
        return Overloaded("draining") if isinstance(message, asked) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        peers[instance].answers = full
        request = ask("hello")
        request.ttft_deadline_ms = 2000

        async def shed() -> Answered | None:
            """Room is waited for until just before the deadline, which may pass first on a busy machine."""
            answer = await generate(running.stub, request)
            return answer if answer.outcome == "shed" else None

        answer = await until(shed)
    assert isinstance(answer, Answered)
    assert answer.status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answer.end is not None
    assert answer.end.error.retry_after_ms > 0


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
    assert unpack_hashes(message.block_hashes) == hashes_of(ids)
    assert (message.prompt_len, message.sampling.max_tokens) == (25, 9)
    assert isinstance(opened, Open)
    assert (unpack_ids(opened.replay), opened.emitted_chars, opened.next_position) == (ids[25:], 3, 28)
    assert unpack_ids(opened.prompt_tail) == ids[:25]
    assert (answer.text, answer.positions) == ("abcde", [25, 26, 27, 28, 29])
    assert answer.end is not None
    assert answer.end.usage.replacements == 1
    assert all(told == [(1, "replaced")] for told in peers.cancels().values())


async def test_blocks_are_named_for_the_kv_layout_of_the_workers_that_get_them(nats_url: str) -> None:
    ids = [ord(c) for c in "a prompt that fills a block"]
    async with fleet(nats_url, "tokenizer", "detokenizer") as peers, gateway(nats_url) as running:
        before = [await peers.add(role, layout="one") for role in ("prefill", "decode")]
        call = asyncio.create_task(generate(running.stub, ask("a prompt that fills a block")))
        envelope, first = await peers.placed()
        for peer in before:
            await peer.stop()
        for role in ("prefill", "decode"):
            await peers.add(role, 1, layout="two")
        await peers.lost(envelope.request_id, 1)
        _, second = await peers.placed(epoch=2, prefill="prefill-1")
        await peers.text(envelope.request_id, len(ids), "x", epoch=2, finish="length")
        await call
    (_, tokenize), *_ = peers["tokenizer-0"].of(Tokenize)
    assert isinstance(tokenize, Tokenize)
    assert tokenize.layout == "one"
    assert unpack_hashes(first.block_hashes) == hashes_of(ids, "one")
    assert unpack_hashes(second.block_hashes) == hashes_of(ids, "two")


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
        await peers.text(envelope.request_id, 5, "ab")
        await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 7, "c", epoch=2, finish="stop")
        answer = await call
    assert answer.text == "abc"


@pytest.mark.thorough
async def test_a_stream_that_stalls_late_in_its_answer_is_placed_anew(nats_url: str) -> None:
    """Rows in the middle of an answer wake nobody: the last of them still counts."""
    async with fleet(nats_url) as peers, gateway(nats_url, stall_timeout_s=0.5) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        call = asyncio.create_task(generate(running.stub, ask("hello", max_tokens=12)))
        envelope, _ = await peers.placed()
        for position in range(5, 15):
            await peers.text(envelope.request_id, position, "a")
        await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 15, "bc", finish="length", epoch=2)
        answer = await call
    assert answer.text == "a" * 10 + "bc"
    assert answer.end is not None
    assert answer.end.usage.replacements == 1


async def test_a_replacement_that_waits_for_its_prefill_has_not_stalled(nats_url: str) -> None:
    """The stall timer is decode's: a queue before prefill, or a transfer, is longer than it."""
    async with fleet(nats_url) as peers, gateway(nats_url, stall_timeout_s=0.1) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        await peers.lost(envelope.request_id, 1)
        await peers.placed(epoch=2)
        (session,) = running.registry._live.values()
        waiting = Deadline.after(0.3)
        await until(waiting.expired)
        assert session.state.epoch == 2
        await peers.text(envelope.request_id, 7, "c", epoch=2)  # its transfer is on the way now
        waiting = Deadline.after(0.3)
        await until(waiting.expired)
        assert session.state.epoch == 2
        await peers.text(envelope.request_id, 8, "d", epoch=2, finish="stop")
        answer = await call
    assert answer.text == "abcd"


async def test_replacements_with_progress_do_not_add_up(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, max_replacements=1) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello", max_tokens=20)))
        envelope, _ = await peers.placed()
        for epoch in range(1, 5):
            await peers.text(envelope.request_id, 4 + epoch, "x", epoch=epoch)
            await peers.lost(envelope.request_id, epoch)
            await peers.placed(epoch=epoch + 1)
        await peers.text(envelope.request_id, 9, "y", epoch=5, finish="stop")
        answer = await call
    assert (answer.outcome, answer.text) == ("finished", "xxxxy")
    assert answer.end is not None
    assert answer.end.usage.replacements == 4


async def test_a_replacement_avoids_the_worker_that_failed(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, stall_timeout_s=0.1) as running:
        await peers.add("decode", 1, live=7)  # busier, and yet the better choice after the failure
        await running.knows("decode", 2)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, first = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        _, second = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 7, "c", epoch=2, finish="stop")
        await call
    assert (first.decode, second.decode) == ("decode-0", "decode-1")


async def test_a_role_that_vanishes_while_another_is_missing_is_waited_for_too(nats_url: str) -> None:
    roles = ("tokenizer", "prefill", "detokenizer")
    async with fleet(nats_url, *roles) as peers, gateway(nats_url) as running:
        decode = await peers.add("decode")
        await running.knows("decode", 1)
        await peers["prefill-0"].stop()
        await running.knows("prefill", 0)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        await until(lambda: peers["tokenizer-0"].got)
        await decode.stop()
        await running.knows("decode", 0)
        await peers.add("prefill", 1)
        await running.knows("prefill", 1)
        await peers.add("decode", 1)
        envelope, _ = await peers.placed(prefill="prefill-1")
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        answer = await call
    assert answer.outcome == "finished"


async def test_two_models_side_by_side_are_never_mixed(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await peers.add(role, 1, model="other-model")
            await running.knows(role, 2)
        for _ in range(4):  # equals take turns
            request = ask("hello")
            request.model = "other-model"
            call = asyncio.create_task(generate(running.stub, request))
            await until(lambda: running.registry._live)
            (session,) = running.registry._live.values()
            await until(lambda session=session: session.state.phase == "prefill")  # type: ignore[misc]
            await peers.text(session.request_id, 5, "a", finish="stop")
            assert (await call).outcome == "finished"
            await until(lambda: not running.registry._live)
        used = {instance for instance, peer in peers.peers.items() if peer.got}
    assert used == {"tokenizer-1", "prefill-1", "decode-1", "detokenizer-1"}


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
        (session,) = running.registry._live.values()
        await until(lambda: session.state.epoch_tokens == 2)
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


async def test_who_is_lost_while_it_is_asked_is_replaced_however_little_waiting_is_allowed(
    nats_url: str,
) -> None:
    """The wait is for a role that has nobody; asking somebody is none."""

    def silent(message: Message) -> Answer:
        return None if isinstance(message, Open) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url, admit_wait_s=0.0) as running:
        await peers.add("detokenizer", 1, live=7)  # the busier one is the second choice
        for role in ("tokenizer", "prefill", "decode"):
            await running.knows(role, 1)
        await running.knows("detokenizer", 2)
        peers["detokenizer-0"].answers = silent
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        await peers.placed()
        await peers["detokenizer-0"].stop()
        envelope, message = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 5, "a", epoch=2, finish="stop")
        answer = await call
    assert (message.detokenizer, answer.outcome) == ("detokenizer-1", "finished")


async def test_a_failure_that_leaves_no_time_for_another_try_is_the_deadline_s(nats_url: str) -> None:
    roles = ("tokenizer", "prefill", "decode")
    async with fleet(nats_url, *roles) as peers, gateway(nats_url, admit_wait_s=0.0) as running:
        for role in roles:
            await running.knows(role, 1)
        request = ask("hello")
        request.deadline_ms = int(LATE_S * 1000)
        answer = await generate(running.stub, request)
        assert not peers["prefill-0"].of(Prefill)
    assert (answer.outcome, answer.status) == ("expired", grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_a_fleet_without_decode_fails_after_a_bounded_wait(nats_url: str) -> None:
    async with (
        fleet(nats_url, "tokenizer", "prefill", "detokenizer"),
        gateway(nats_url, admit_wait_s=0.1) as running,
    ):
        answer = await generate(running.stub, ask("hello"))
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.UNAVAILABLE)
    assert answer.end is not None
    assert answer.end.error.hop == "decode"


async def test_text_and_bad_news_of_instances_that_do_not_hold_the_request_are_dropped_and_counted(
    nats_url: str,
) -> None:
    def foreign(kind: str) -> float:
        return metric.value("penstock_dropped_messages_total", reason=f"foreign_{kind}")

    before = foreign("text"), foreign("lost")
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stranger = await Bus.connect(nats_url, name="stranger", sender="detokenizer-1")
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        altered = Text((envelope.request_id,), (1,), (5,), ((88,),), ("X",), ("",), ((),), ((),))
        await stranger.publish(inbox("gateway", GATEWAY), altered)
        await until(lambda: foreign("text") == before[0] + 1)
        lost = Lost("gap", "made up", "decode")
        await stranger.publish(inbox("gateway", GATEWAY), lost, stranger.envelope(envelope.request_id, 1))
        await until(lambda: foreign("lost") == before[1] + 1)
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        answer = await call
        await stranger.close()
    assert (answer.outcome, answer.text) == ("finished", "a")
    assert answer.end is not None
    assert answer.end.usage.replacements == 0
