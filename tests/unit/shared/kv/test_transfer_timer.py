"""The timer of transfers: when it looks, and whom it leaves alone."""

from __future__ import annotations

import asyncio

import pytest

from shared.deadline import Deadline
from shared.errors import DeadlineExpired, PenstockError
from shared.kv.request_blocks import RequestBlocks
from shared.kv.sending.outgoing import OutgoingTransfer
from shared.kv.transfer_key import TransferKey
from shared.kv.transfer_timer import TransferTimer
from tests.support.clock import FakeClock
from tests.support.wait import until

ONE_BLOCK = RequestBlocks(((0,),), (0,), (0,))


class Owner:
    """Ends every transfer when the first one fails, as a service may in its callback."""

    def __init__(self, transfers: dict[TransferKey, OutgoingTransfer]) -> None:
        self.transfers = transfers
        self.failed: list[tuple[TransferKey, str]] = []

    def fail_transfer(self, outgoing: OutgoingTransfer, error: PenstockError) -> None:
        self.failed.append((outgoing.key, error.code))
        self.transfers.clear()

    def release_transfer(self, outgoing: OutgoingTransfer) -> None:
        raise AssertionError(outgoing)

    def remind_peer(self, outgoing: OutgoingTransfer, _now_s: float) -> None:
        raise AssertionError(outgoing)


def forget_nothing(_now_s: float) -> None: ...


async def test_a_transfer_that_a_callback_ended_is_not_looked_after_in_the_same_round() -> None:
    clock = FakeClock()
    transfers = {
        (name, 1): OutgoingTransfer(name, 1, "", "decode-0", ONE_BLOCK, Deadline.after(-1.0, clock), 0.0)
        for name in ("first", "second")
    }
    owner = Owner(transfers)
    running = asyncio.create_task(TransferTimer(transfers, forget_nothing, owner, clock).run())
    await until(lambda: bool(owner.failed))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert owner.failed == [(("first", 1), DeadlineExpired.code)]


async def test_a_timer_that_rests_looks_after_the_first_transfer_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.kv.transfer_timer.REST_TICK_S", 3600.0)
    clock = FakeClock()
    transfers: dict[TransferKey, OutgoingTransfer] = {}
    owner = Owner(transfers)
    timer = TransferTimer(transfers, forget_nothing, owner, clock)
    running = asyncio.create_task(timer.run())
    await asyncio.sleep(0)  # it rests
    deadline = Deadline.after(-1.0, clock)
    transfers["first", 1] = OutgoingTransfer("first", 1, "", "decode-0", ONE_BLOCK, deadline, 0.0)
    timer.wake()
    await until(lambda: bool(owner.failed))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
