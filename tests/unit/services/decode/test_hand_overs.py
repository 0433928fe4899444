"""A decode worker that drains hands its sequences over; the test is the gateway and the sending side of
KV."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

from services.decode.hand_overs import LAST_TOKENS
from services.decode.job import DecodeJob
from shared.errors import Overloaded, PenstockError, Unavailable
from shared.kv.limits import HALT_AFTER_TOKENS
from shared.messages import (
    LONG_STEPS,
    SHORT_OF_BLOCKS,
    Cancel,
    HandOverDone,
    Message,
    Reserve,
    Successor,
    pack_ids,
)
from shared.worker.job import JobPhase
from shared.worker.worker_actor import Transfers
from tests.support.clock import FakeClock
from tests.support.played_sender import PlayedSender
from tests.support.sampling import sampling
from tests.support.wait import until
from tests.unit.services.decode.test_actor import PROMPT, Worker

KEY = ("r", 1)
GATEWAY = "penstock.gateway.gateway-0"


class Leaver(Worker):
    """A worker that drains; each of its questions to gateways is answered by the test."""

    def __init__(self, llm_dir: Path, *, hand_overs: int = 4) -> None:
        super().__init__(llm_dir, kv_blocks=128, hand_overs=hand_overs)
        self.asked: list[tuple[int, asyncio.Future[Message]]] = []
        self.reliefs: list[str] = []

    @property
    def sender(self) -> PlayedSender:
        return cast(PlayedSender, self._hand_overs.sender)

    async def open_transfers(self) -> Transfers:
        transfers = await super().open_transfers()
        self._hand_overs._ask = self._ask_test
        return transfers

    async def _ask_test(self, _: DecodeJob, position: int, relief: str) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.asked.append((position, answer))
        self.reliefs.append(relief)
        return await answer

    async def decode_and_leave(self, *, max_tokens: int = 400) -> None:
        """One sequence decodes, and its gateway has been asked for a successor."""
        await self.decode(max_tokens=max_tokens)
        self._service.stopping.set()
        await self.steps_until(lambda: bool(self.asked))

    async def answer(self, answer: Message | PenstockError) -> None:
        _, asked = self.asked[-1]
        if isinstance(answer, PenstockError):
            asked.set_exception(answer)
        else:
            asked.set_result(answer)
        await until(lambda: self._hand_overs._answers)
        await self.step()

    async def steps_until(self, done: Callable[[], bool]) -> None:
        for _ in range(400):
            if done():
                return
            await self.step()
        raise AssertionError("it did not come to that")

    async def sending(self, *, max_tokens: int = 400) -> None:
        await self.decode_and_leave(max_tokens=max_tokens)
        await self.answer(Successor("decode-1"))
        assert self.sender.offered == [(KEY, "decode-1")]

    async def left(self) -> None:
        """It has stopped, and all of its rest is with the sender."""
        await self.sending()
        self.sender.tell_sent(KEY)
        await self.steps_until(lambda: bool(self.sender.finished))

    @property
    def phase(self) -> JobPhase | None:
        job = self._book.jobs.get("r/1")
        return None if job is None else job.phase

    def handed_over(self) -> list[HandOverDone]:
        return [one for one in self.sent.to(GATEWAY) if isinstance(one, HandOverDone)]


@pytest.fixture
async def worker(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leaver]:
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)  # a step a turn
    monkeypatch.setattr("services.decode.hand_overs.AGAIN_AFTER_S", 0.0)
    worker = Leaver(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


async def test_a_sequence_goes_on_here_until_its_kv_is_there_and_then_nothing_of_it_is_left(
    worker: Leaver,
) -> None:
    await worker.sending()
    asked_at, before = worker.asked[0][0], worker.decoded()
    await worker.step()
    assert worker.decoded() > before
    worker.sender.tell_sent(KEY)
    await worker.steps_until(lambda: bool(worker.sender.finished))
    assert worker.phase is JobPhase.LEAVING
    last_ids, finish = worker.sender.finished[0]
    decoded = worker.decoded()
    # prompt, the first token of the prefill worker, and what was decoded here
    assert (asked_at + len(last_ids), finish) == (len(PROMPT) + 1 + decoded, "")
    await worker.step()
    assert worker.decoded() == decoded
    worker.sender.release(KEY)
    await worker.step()
    assert [told.decode for told in worker.handed_over()] == ["decode-1"]
    assert list(worker.held()) == []


async def test_what_came_while_kv_was_sent_is_sent_before_the_sequence_stops(worker: Leaver) -> None:
    await worker.sending()
    end = worker.decoded() + LAST_TOKENS + 2
    await worker.steps_until(lambda: worker.decoded() >= end)
    worker.sender.tell_sent(KEY)
    await worker.steps_until(lambda: len(worker.sender.blocks) > 1)
    assert worker.sender.blocks[1] > worker.sender.blocks[0]
    assert worker.phase is JobPhase.DECODING


async def test_a_sequence_that_outgrows_its_room_stops_though_not_all_is_sent(worker: Leaver) -> None:
    await worker.sending()
    end = worker.decoded() + HALT_AFTER_TOKENS
    await worker.steps_until(lambda: worker.decoded() >= end)
    assert worker.phase is JobPhase.DECODING
    await worker.on_tick()
    await worker.steps_until(lambda: worker.phase is JobPhase.LEAVING)


async def test_a_sequence_that_nobody_takes_goes_on_here_and_is_offered_again(worker: Leaver) -> None:
    await worker.decode_and_leave()
    before = worker.decoded()
    await worker.answer(Overloaded("all are full"))
    await worker.steps_until(lambda: len(worker.asked) > 1)
    assert worker.decoded() > before
    assert worker.asked[1][0] > worker.asked[0][0]


async def test_a_transfer_that_fails_while_it_decodes_leaves_it_here(worker: Leaver) -> None:
    await worker.sending()
    worker.sender.fail(KEY, Unavailable("gone"))
    worker.sender.release(KEY)
    before = worker.decoded()
    await worker.step()
    assert worker.decoded() > before
    assert worker.lost() == []


async def test_once_it_has_stopped_a_failure_is_its_gateway_s_to_mend(worker: Leaver) -> None:
    """Nobody knows whether the successor has it."""
    await worker.left()
    worker.sender.fail(KEY, Unavailable("it acknowledges nothing"))
    await worker.step()
    assert [lost.code for lost in worker.lost()] == ["unavailable"]
    assert worker.kinds_held() == {"lease", "kv_blocks"}
    worker.sender.release(KEY)
    await worker.step()
    assert list(worker.held()) == []
    assert worker.handed_over() == []


async def test_a_transfer_that_fails_while_its_sequence_is_being_stopped_is_lost(worker: Leaver) -> None:
    await worker.sending()
    worker.sender.tell_sent(KEY)
    worker.sender.fail(KEY, Unavailable("gone"))
    worker.sender.release(KEY)
    await worker.steps_until(lambda: bool(worker.lost()))
    await worker.step()
    assert list(worker.held()) == []


async def test_a_cancel_keeps_blocks_that_are_being_read(worker: Leaver) -> None:
    await worker.left()
    await worker.send(Cancel("cancelled"))
    await worker.step()
    assert worker.sender.aborted == [KEY]
    assert worker.kinds_held() == {"lease", "kv_blocks"}
    worker.sender.release(KEY)
    await worker.step()
    assert list(worker.held()) == []


async def test_a_sequence_that_ends_while_it_is_sent_tells_its_successor_so(worker: Leaver) -> None:
    await worker.sending(max_tokens=30)
    await worker.steps_until(lambda: bool(worker.sender.finished))
    assert worker.sender.finished == [((), "length")]
    worker.sender.release(KEY)
    await worker.step()
    assert list(worker.held()) == []
    assert worker.handed_over() == []


async def test_a_sequence_that_ends_while_its_gateway_is_asked_leaves_nothing(worker: Leaver) -> None:
    await worker.decode_and_leave(max_tokens=10)
    await worker.steps_until(lambda: worker.phase is None)
    await worker.step()
    assert list(worker.held()) == []


async def test_no_more_are_handed_over_at_a_time_than_are_configured(worker: Leaver) -> None:
    for name in ("a", "b", "c", "d", "e"):
        await worker.decode(name, max_tokens=400)
    worker._service.stopping.set()
    await worker.steps_until(lambda: len(worker.asked) == worker._service.config.hand_overs)
    for _ in range(3):
        await worker.step()
    assert len(worker.asked) == 4


async def test_a_worker_that_drains_looks_for_no_relief(worker: Leaver) -> None:
    await worker.decode_and_leave()
    assert worker.reliefs == [""]


async def test_a_worker_short_of_blocks_lets_a_stream_leave_and_goes_on(worker: Leaver) -> None:
    """The pool has room for less than what all of them come to. No time passes, so nobody asks again who is
    faster, however long these steps take."""
    worker._departures._rebalancing._clock = FakeClock()
    for name in "abcdefghij":
        await worker.decode(name, max_tokens=200)
    await worker.steps_until(lambda: bool(worker.asked))
    await worker.answer(Overloaded("nobody is faster"))
    await worker.steps_until(lambda: worker._book.missing_blocks > 0)
    await worker.steps_until(lambda: len(worker.asked) > 1)
    assert worker.reliefs == [LONG_STEPS, SHORT_OF_BLOCKS]
    await worker.answer(Successor("decode-1"))
    (key, successor) = worker.sender.offered[0]
    assert successor == "decode-1"
    worker.sender.tell_sent(key)
    await worker.steps_until(lambda: bool(worker.sender.finished))
    worker.sender.release(key)
    await worker.step()
    assert len(worker.handed_over()) == 1
    assert len(worker._book.jobs) == 9
    assert worker._service.state != "draining"


async def test_a_worker_told_to_hand_nothing_over_keeps_its_streams(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)
    keeper = Leaver(llm_dir, hand_overs=0)
    await keeper.on_start()
    try:
        for name in "abcdefghij":
            await keeper.decode(name, max_tokens=200)
        await keeper.steps_until(lambda: keeper._book.missing_blocks > 0)
        for _ in range(5):
            await keeper.step()
        assert keeper.asked == []
    finally:
        await keeper.on_stop()


async def test_a_stream_that_comes_back_is_not_taken_for_the_one_that_left(worker: Leaver) -> None:
    ids = (*PROMPT, 5, 6)
    back = Reserve(
        pack_ids(ids),
        len(PROMPT),
        b"",
        sampling(max_tokens=40),
        "gateway-0",
        "detokenizer-0",
        "decode-1",
        "",
        0,
        predecessor_incarnation=7,
    )
    await worker.send(back)
    assert worker.sender.forgotten == [KEY]
