"""A request that takes engines down ends; its neighbours, and whoever was only near, finish."""

from __future__ import annotations

import asyncio

import grpc

from services.gateway.fleet.crash_record import PROVEN_TOKENS
from services.gateway.session.session import Session
from tests.integration.gateway_peers import Fleet, Peer, Running, ask, fleet, gateway
from tests.support.client import Answer, generate
from tests.support.wait import until

SOME = "x" * PROVEN_TOKENS


async def place(running: Running, text: str) -> tuple[Session, asyncio.Task[Answer]]:
    """A request whose prompt is `text`, placed for the first time."""
    call = asyncio.create_task(generate(running.stub, ask(text)))

    def found() -> Session | None:
        sessions = running.registry._live.values()
        return next((session for session in sessions if session.request.text == text), None)

    session = await until(found)
    assert isinstance(session, Session)
    await placed(session, 1)
    return session, call


async def placed(session: Session, epoch: int) -> None:
    await until(lambda: session.state.epoch == epoch and session.state.phase == "prefill")


async def say(peers: Fleet, session: Session, text: str, finish: str = "") -> None:
    """Tokens of the session's route come, and are relayed."""
    state = session.state
    await peers.text(session.request_id, state.log.next_position, text, epoch=state.epoch, finish=finish)
    wanted = state.log.next_position + len(text)
    await until(lambda: state.log.next_position == wanted)


def crash(peer: Peer, incarnation: int, **fields: object) -> None:
    """Its next life begins: the one before ended without a word."""
    peer.say(incarnation=incarnation, **fields)


async def test_a_request_that_two_decode_workers_die_of_ends_and_its_neighbours_finish(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        neighbours = [await place(running, f"neighbour {number}") for number in range(2)]
        for session, _ in neighbours:
            await say(peers, session, SOME)
        poison, its_call = await place(running, "poison request")
        for life in (2, 3):
            await say(peers, poison, "a")  # prefill's own token; decode dies over the next one
            crash(peers["decode-0"], life)
            for session, _ in neighbours:
                await placed(session, life)
                await say(peers, session, SOME)
            if life == 2:
                await placed(poison, life)
        answer = await its_call
        for session, _ in neighbours:
            await say(peers, session, "end", finish="stop")
        answers = [await call for _, call in neighbours]
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.INTERNAL)
    assert "2 workers failed while they computed this request" in answer.details
    assert answer.end is not None
    assert answer.end.error.hop == "decode"
    assert [one.outcome for one in answers] == ["finished"] * 2


async def test_of_those_named_in_last_words_one_after_another_is_tried_until_the_culprit_is_found(
    nats_url: str,
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        innocent, innocent_call = await place(running, "innocent")
        poison, poison_call = await place(running, "poison request")
        for session in (innocent, poison):
            await say(peers, session, SOME)
            await peers.lost(session.request_id, 1, "engine_fault")
        await placed(innocent, 2)
        assert poison.state.epoch == 1
        await say(peers, innocent, SOME)  # it is past what the engine failed over
        await placed(poison, 2)
        for session in (innocent, poison):
            await peers.lost(session.request_id, 2, "engine_fault")
        answer = await poison_call
        await placed(innocent, 3)
        await say(peers, innocent, "end", finish="stop")
        other = await innocent_call
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.INTERNAL)
    assert other.outcome == "finished"


async def test_a_request_that_waits_behind_others_at_prefill_survives_the_death_of_two(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await running.knows("prefill", 1)
        peers["prefill-0"].say(queued=3, live=1)
        await until(lambda: running.fleet.instances("prefill")[0].heartbeat.queued == 3)
        session, call = await place(running, "waiting")
        for life in (2, 3):
            crash(peers["prefill-0"], life)
            await placed(session, life)
        await say(peers, session, "end", finish="stop")
        answer = await call
    assert answer.outcome == "finished"


async def test_a_stream_that_makes_progress_survives_any_number_of_killed_workers(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        session, call = await place(running, "healthy")
        for life in range(2, 6):
            await say(peers, session, "ab")
            crash(peers["decode-0"], life)
            await placed(session, life)
        await say(peers, session, "end", finish="stop")
        answer = await call
    assert answer.outcome == "finished"


async def test_who_is_cancelled_on_trial_lets_the_next_suspect_go(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        first, first_call = await place(running, "first")
        second, second_call = await place(running, "second")
        for session in (first, second):
            await peers.lost(session.request_id, 1, "engine_fault")
        await placed(first, 2)
        first.cancel_request("the test says so")
        await placed(second, 2)
        await say(peers, second, "end", finish="stop")
        assert (await second_call).outcome == "finished"
        assert (await first_call).outcome == "cancelled"
        assert not running.registry._context.poison_requests._records
