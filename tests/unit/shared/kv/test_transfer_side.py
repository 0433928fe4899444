"""How either side ends a transfer: its owner hears of a failure once, and of free blocks after it."""

from __future__ import annotations

import pytest

from shared.deadline import Deadline
from shared.errors import PenstockError, Unavailable
from shared.kv.request_blocks import RequestBlocks
from shared.kv.sending.outgoing import OutgoingPhase, OutgoingTransfer
from shared.kv.transfer_key import TransferKey
from shared.kv.transfer_side import TransferSide
from tests.support.clock import FakeClock

ONE_BLOCK = RequestBlocks(((0,),), (0,), (0,))
GONE = Unavailable("gone")


class Side(TransferSide[TransferKey, OutgoingTransfer]):
    """A side that notes what it does; `granted` transfers have to be acknowledged."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.events: list[tuple[str, str]] = []
        super().__init__(self._failed, lambda key: self.events.append(("released", key[0])), self.clock)

    def _failed(self, key: TransferKey, error: PenstockError) -> None:
        self.events.append((error.code, key[0]))

    def add(self, name: str, *, granted: bool, peer: str = "decode-0") -> OutgoingTransfer:
        deadline = Deadline.after(60.0, self.clock)
        transfer = OutgoingTransfer(name, 1, "", peer, ONE_BLOCK, deadline, 0.0)
        if granted:
            transfer.phase = OutgoingPhase.SENDING
        self._transfers[transfer.key] = transfer
        return transfer

    def _is_live(self, transfer: OutgoingTransfer) -> bool:
        return self._transfers.get(transfer.key) is transfer

    def _forget(self, transfer: OutgoingTransfer) -> None:
        self._transfers.pop(transfer.key, None)

    def _send_abort(self, transfer: OutgoingTransfer) -> None:
        self.events.append(("abort", transfer.key[0]))


def test_a_granted_transfer_that_fails_is_told_and_keeps_its_blocks() -> None:
    side = Side()
    side.fail_transfer(side.add("a", granted=True), GONE)
    assert side.events == [("unavailable", "a"), ("abort", "a")]
    assert [held.request_id for held in side.held()] == ["a"]


def test_a_transfer_that_nobody_granted_is_free_at_once() -> None:
    side = Side()
    side.fail_transfer(side.add("a", granted=False), GONE)
    assert side.events == [("unavailable", "a"), ("released", "a")]
    assert side.held() == ()


@pytest.mark.parametrize("granted", [False, True])
def test_without_an_abort_the_blocks_are_free_at_once(granted: bool) -> None:
    side = Side()
    side.fail_transfer(side.add("a", granted=granted), GONE, tell=False)
    assert side.events == [("unavailable", "a"), ("released", "a")]


def test_a_transfer_that_was_given_up_already_is_not_reported_as_failed() -> None:
    side = Side()
    transfer = side.add("a", granted=True)
    side._abort(transfer, "cancelled")
    side.fail_transfer(transfer, GONE)
    assert side.events == [("abort", "a")]
    side.fail_transfer(transfer, GONE, tell=False)
    assert side.events == [("abort", "a"), ("released", "a")]


def test_the_loss_of_a_peer_ends_its_transfers_alone() -> None:
    side = Side()
    side.add("lost", granted=True)
    side.add("kept", granted=True, peer="decode-1")
    side._fail_those_of("decode-0", GONE)
    assert side.events == [("unavailable", "lost"), ("released", "lost")]
    assert [held.request_id for held in side.held()] == ["kept"]


def test_the_tokens_have_waited_since_they_were_known_and_never_less_than_nothing() -> None:
    transfer = Side().add("a", granted=False)
    transfer.set_tokens([7], "", now_s=10.0)
    assert transfer.waited_us(10.5) == 500_000
    assert transfer.waited_us(9.0) == 0
