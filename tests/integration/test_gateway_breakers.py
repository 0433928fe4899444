"""What one request learns of an instance, all know; who answers is alive; the refused wait their turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from services.gateway.fleet.breaker import FIRST_OPEN_S
from services.gateway.session.session import Session
from shared.deadline import Deadline
from shared.errors import DeadlineExpired, Overloaded
from shared.messages import BreakerReport, Message, Prefill, Reserve, Tokenize
from tests.integration import gateway_peers
from tests.integration.gateway_peers import Answer, Fleet, Running, ask, default_answer, fleet
from tests.support.client import generate
from tests.support.clock import FakeClock
from tests.support.wait import until

OPENS_WITHIN_S = 30.0
"""The time in which a breaker opens while requests fail."""


@pytest.fixture(autouse=True)
def no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that lags, silences are excused: these tests are about those that are not."""
    monkeypatch.setattr("services.gateway.fleet.breakers.LAG_S", math.inf)


@asynccontextmanager
async def gateway(nats_url: str, clock: FakeClock | None = None, **options: object) -> AsyncIterator[Running]:
    """A gateway whose breakers stay open, and remember, until the test moves their clock on."""
    async with gateway_peers.gateway(nats_url, **options) as running:
        running.registry._context.breakers._clock = clock or FakeClock()
        yield running


def mute(message: Message) -> Answer:
    return None if isinstance(message, Reserve) else default_answer(message)


def states(running: Running) -> list[tuple[str, str]]:
    return [(report.instance, report.state) for report in running.registry._context.breakers.report()]


def reserves(peers: Fleet, instance: str) -> int:
    return len(peers[instance].of(Reserve))


async def serve(peers: Fleet, running: Running, text: str = "") -> None:
    """One request to its end; `text` comes before its last row."""
    call = asyncio.create_task(generate(running.stub, ask("hello")))
    session = await live(running)
    await until(lambda: session.state.phase == "prefill")
    await peers.text(session.request_id, 5, text + "a", epoch=session.state.epoch, finish="stop")
    assert (await call).outcome == "finished"
    await until(lambda: not running.registry._live)


async def live(running: Running) -> Session:
    session = await until(lambda: next(iter(running.registry._live.values()), None))
    assert isinstance(session, Session)
    return session


async def open_breaker(peers: Fleet, running: Running) -> None:
    """decode-0 is the better choice and does not answer."""
    peers["decode-0"].answers = mute
    await fail_until_open(running, lambda: serve(peers, running))
    assert states(running) == [("decode-0", "open")]


async def fail_until_open(running: Running, once: Callable[[], Awaitable[None]]) -> None:
    give_up = Deadline.after(OPENS_WITHIN_S)
    while not states(running) and not give_up.expired():
        await once()


async def test_a_worker_that_does_not_answer_is_asked_by_a_few_requests_and_then_by_none(
    nats_url: str,
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, ask_timeout_s=0.5) as running:
        await peers.add("decode", 1, live=7)
        await running.knows("decode", 2)
        await open_breaker(peers, running)
        asked = reserves(peers, "decode-0")
        await serve(peers, running)
        assert states(running) == [("decode-0", "open")]
        assert reserves(peers, "decode-0") == asked


async def test_one_request_probes_and_its_progress_brings_the_worker_back(nats_url: str) -> None:
    clock = FakeClock()
    async with fleet(nats_url) as peers, gateway(nats_url, clock, ask_timeout_s=0.5) as running:
        await peers.add("decode", 1, live=1)
        await running.knows("decode", 2)
        await open_breaker(peers, running)
        peers["decode-0"].answers = default_answer
        clock.advance(FIRST_OPEN_S)
        assert states(running) == [("decode-0", "half-open")]
        asked = reserves(peers, "decode-0")
        calls = [asyncio.create_task(generate(running.stub, ask("hello"))) for _ in range(4)]
        await until(lambda: len(running.registry._live) == 4)
        sessions = list(running.registry._live.values())
        await until(lambda: all(session.state.phase == "prefill" for session in sessions))
        assert reserves(peers, "decode-0") == asked + 1
        assert states(running) == [("decode-0", "half-open")]  # it was taken, and nothing has come of it
        (probe,) = [s for s in sessions if s.state.route and s.state.route.decode == "decode-0"]
        await peers.text(probe.request_id, 5, "a", epoch=probe.state.epoch)
        await until(lambda: probe.state.epoch_tokens == 1)
        assert states(running) == [("decode-0", "half-open")]  # that token was prefill's
        await peers.text(probe.request_id, 6, "b", epoch=probe.state.epoch)
        await until(lambda: states(running) == [])
        for session in sessions:
            at = session.state.log.next_position
            await peers.text(session.request_id, at, "c", epoch=session.state.epoch, finish="stop")
        assert {(await call).outcome for call in calls} == {"finished"}


@pytest.mark.thorough
async def test_a_probe_whose_client_leaves_makes_room_for_another(nats_url: str) -> None:
    clock = FakeClock()
    async with fleet(nats_url) as peers, gateway(nats_url, clock, ask_timeout_s=0.5) as running:
        await peers.add("decode", 1, live=7)
        await running.knows("decode", 2)
        await open_breaker(peers, running)
        peers["decode-0"].answers = default_answer
        clock.advance(FIRST_OPEN_S)
        assert states(running) == [("decode-0", "half-open")]
        call = running.stub.Generate(ask("hello"))
        session = await live(running)
        await until(lambda: session.state.phase == "prefill")
        call.cancel()
        await until(lambda: not running.registry._live)
        assert states(running) == [("decode-0", "half-open")]
        await serve(peers, running, "b")
        assert states(running) == []


@pytest.mark.thorough
async def test_where_all_of_a_role_are_open_they_are_used_anyway(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, ask_timeout_s=0.5) as running:
        await peers.add("decode", 1, live=7)
        await running.knows("decode", 2)
        await open_breaker(peers, running)
        await peers["decode-1"].stop()
        await running.knows("decode", 1)
        peers["decode-0"].answers = default_answer
        await serve(peers, running)


async def test_streams_that_stall_open_the_breaker_of_their_decode_worker(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, stall_timeout_s=0.1) as running:

        async def stall() -> None:
            call = asyncio.create_task(generate(running.stub, ask("hello")))
            session = await live(running)
            await until(lambda: session.state.phase == "prefill")
            await peers.text(session.request_id, 5, "ab")
            await until(lambda: session.state.epoch == 2)
            await until(lambda: session.state.phase == "prefill")
            await peers.text(session.request_id, 7, "c", epoch=2, finish="stop")
            await call
            await until(lambda: not running.registry._live)

        await peers.add("decode", 1, live=7)
        await running.knows("decode", 2)
        await fail_until_open(running, stall)
        assert states(running) == [("decode-0", "open")]


async def test_a_worker_that_is_full_or_finds_the_request_late_has_not_failed(nats_url: str) -> None:
    errors = [Overloaded("full"), DeadlineExpired("it would be late", hop="decode")]

    def refuse(message: Message) -> Answer:
        return (
            errors[reserves(peers, "decode-0") % 2]
            if isinstance(message, Reserve)
            else default_answer(message)
        )

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("decode", 1, live=7)
        await running.knows("decode", 2)
        peers["decode-0"].answers = refuse
        for _ in range(8):
            await serve(peers, running)
        asked = {envelope.request_id for envelope, _ in peers["decode-0"].of(Reserve)}
        assert len(asked) == 8  # neither avoided nor gone; a request that waited its turn again asks twice
        assert not running.registry._context.breakers._breakers


async def test_an_instance_that_a_peer_keeps_away_from_is_left_to_others(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("decode", 1, live=7)
        await running.knows("decode", 2)
        await peers.add("gateway", 1, breakers=(BreakerReport("decode", "decode-0", 1, "open"),))
        await running.knows("gateway", 1)
        await serve(peers, running)
        assert (reserves(peers, "decode-0"), reserves(peers, "decode-1")) == (0, 1)


@pytest.mark.thorough
async def test_a_tokenizer_that_breaks_over_several_requests_is_left_to_others(nats_url: str) -> None:
    def silent(message: Message) -> Answer:
        return None if isinstance(message, Tokenize) else default_answer(message)

    async with (
        fleet(nats_url) as peers,
        gateway(nats_url, ask_timeout_s=0.05, tokenize_share=0.01) as running,
    ):
        await peers.add("tokenizer", 1, capacity=1, live=1)
        await running.knows("tokenizer", 2)
        peers["tokenizer-0"].answers = silent
        await fail_until_open(running, lambda: serve(peers, running))
        assert states(running) == [("tokenizer-0", "open")]
        asked = len(peers["tokenizer-0"].of(Tokenize))
        await serve(peers, running)
        assert len(peers["tokenizer-0"].of(Tokenize)) == asked


async def test_who_is_refused_again_and_again_keeps_its_turn_until_there_is_a_slot(nats_url: str) -> None:
    """As when several gateways fight over one slot."""

    def lose_the_race(message: Message) -> Answer:
        lost = isinstance(message, Reserve) and reserves(peers, "decode-0") <= 12
        return Overloaded("somebody was faster") if lost else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        peers["decode-0"].answers = lose_the_race
        await serve(peers, running)
        assert reserves(peers, "decode-0") == 13


async def test_the_refused_are_not_tried_again_before_the_worker_tells_what_room_it_has(
    nats_url: str,
) -> None:
    full = Overloaded("no blocks left", hop="decode")

    def refuse(message: Message) -> Answer:
        return full if isinstance(message, Reserve) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        peers["decode-0"].answers = refuse
        request = ask("hello")
        request.ttft_deadline_ms = 2000
        answer = await generate(running.stub, request)
        assert reserves(peers, "decode-0") < 16  # a heartbeat comes every 250 ms; the backoff alone is 5 ms
    assert answer.outcome in ("shed", "expired")  # the latter where the machine is too slow to foresee it


@pytest.mark.thorough
async def test_who_is_refused_for_long_by_one_worker_goes_to_the_other(nats_url: str) -> None:
    def refuse(message: Message) -> Answer:
        full = Overloaded("a long queue", hop="prefill", retry_after_ms=600_000)
        return full if isinstance(message, Prefill) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("prefill", 1, live=7)
        await running.knows("prefill", 2)
        peers["prefill-0"].answers = refuse
        await serve(peers, running)
        assert len(peers["prefill-0"].of(Prefill)) == len(peers["prefill-1"].of(Prefill)) == 1


async def test_a_slot_at_a_worker_that_is_kept_away_from_is_none(nats_url: str) -> None:
    """Or requests would have their turn, and find the others full."""
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("decode", 1, capacity=1, live=1)
        await running.knows("decode", 2)
        report = BreakerReport("decode", "decode-0", 1, "open")
        shunning = await peers.add("gateway", 1, breakers=(report,))
        await running.knows("gateway", 1)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        queue = running.registry._context.admission_queue
        await until(lambda: len(queue) == 1)
        assert not peers["decode-1"].of(Reserve)
        shunning.say(breakers=())
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"
