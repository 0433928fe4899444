"""Which side of a worker's KV transfers a message is for."""

from __future__ import annotations

from typing import cast

import pytest

from shared.bus import Delivery
from shared.kv.both_sides import BothSides
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import TransferKey
from shared.messages import Envelope, KvAbort, KvAbortAck, KvDone, KvGrant, KvReceived, Message

SENT = ("r", 2)
"""The transfer that this worker sends to decode-1, with the number of one that it has received."""
RECEIVED = 1


class Side:
    def __init__(self, *taken: type[Message]) -> None:
        self._taken = taken
        self.heard: list[Message] = []

    def is_between(self, key: TransferKey, peer: str) -> bool:
        return key == SENT and peer in ("", "decode-1")

    def is_known(self, key: TransferKey, transfer: int) -> bool:
        return (key, transfer) == (SENT, RECEIVED)

    def handle_message(self, delivery: Delivery) -> bool:
        if not isinstance(delivery.message, self._taken):
            return False
        self.heard.append(delivery.message)
        return True


@pytest.mark.parametrize(
    ("message", "sender", "to_sender"),
    [
        (KvReceived(1), "decode-1", True),
        (KvGrant(1, "", (0,), 1, "nats", "", 0), "decode-1", True),
        (KvDone(1, (), "", 0), "prefill-0", False),
        (KvAbort(1, ""), "decode-1", True),
        (KvAbortAck(1), "decode-1", True),
        (KvAbortAck(1), "", True),
        (KvAbort(1, ""), "prefill-0", False),
        (KvAbort(2, ""), "prefill-0", True),  # of a transfer that nobody knows here yet
        (KvAbortAck(1), "prefill-0", False),
    ],
)
def test_each_message_comes_to_its_side(message: Message, sender: str, to_sender: bool) -> None:
    ours, theirs = Side(KvReceived, KvGrant, KvAbort, KvAbortAck), Side(KvDone, KvAbort, KvAbortAck)
    both = BothSides(cast(KvReceiver, theirs), cast(KvSender, ours))
    assert both.handle_message(Delivery(Envelope(*SENT), message, sender))
    assert (ours.heard, theirs.heard) == (([message], []) if to_sender else ([], [message]))
