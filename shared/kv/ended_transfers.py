"""What a receiver remembers of transfers that have ended: a repeated question gets its answer again."""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus import subjects
from shared.kv.control_sender import ControlBus, ControlSender
from shared.kv.expiring import Expiring
from shared.kv.incoming import IncomingTransfer
from shared.kv.limits import MAX_TOMBSTONES, TOMBSTONE_S
from shared.kv.transfer_key import TransferKey
from shared.messages import KvAbort, KvAbortAck, KvDone, KvReady, KvReceived
from shared.telemetry.metrics import STALE_MESSAGES

SenderMessage = KvReady | KvDone | KvAbort | KvAbortAck


@dataclass(frozen=True, slots=True)
class Tombstone:
    key: TransferKey
    prefill: str
    complete: bool


class EndedTransfers:
    """Tombstones by transfer number."""

    def __init__(self, bus: ControlBus, control_sender: ControlSender) -> None:
        self._bus = bus
        self._control_sender = control_sender
        self._tombstones: Expiring[int, Tombstone] = Expiring(MAX_TOMBSTONES, TOMBSTONE_S)

    def remember_ended(self, incoming: IncomingTransfer, now_s: float) -> None:
        tombstone = Tombstone(incoming.key, incoming.prefill, incoming.complete)
        self._tombstones.put(incoming.transfer, tombstone, now_s)

    def handle_message(self, key: TransferKey, message: SenderMessage) -> None:
        """The first answer may be lost, so that the sender asks again."""
        tombstone = self._tombstones.get(message.transfer)
        if tombstone is None or tombstone.key != key or isinstance(message, KvReady | KvAbortAck):
            STALE_MESSAGES.inc()
            return
        answer: KvAbortAck | KvReceived | KvAbort
        if isinstance(message, KvAbort):
            answer = KvAbortAck(message.transfer)
        elif tombstone.complete:
            answer = KvReceived(message.transfer)
        else:
            answer = KvAbort(message.transfer, "the decode worker gave this transfer up")
        inbox = subjects.inbox("prefill", tombstone.prefill)
        self._control_sender.publish(inbox, answer, self._bus.envelope(*key))

    def forget_expired(self, now_s: float) -> None:
        self._tombstones.forget(now_s)
