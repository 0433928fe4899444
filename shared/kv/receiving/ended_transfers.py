"""Remember a receiver's ended transfers: a repeated question gets its answer again."""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus import subjects
from shared.kv.control_sender import ControlBus, ControlSender
from shared.kv.expiring import Expiring
from shared.kv.limits import MAX_TOMBSTONES, TOMBSTONE_S
from shared.kv.receiving.incoming import IncomingTransfer
from shared.kv.transfer_key import TransferKey
from shared.messages import KvAbort, KvAbortAck, KvDone, KvReady, KvReceived
from shared.telemetry.metrics import STALE_MESSAGES

SenderMessage = KvReady | KvDone | KvAbort | KvAbortAck


@dataclass(frozen=True, slots=True)
class EndedTransfer:
    key: TransferKey
    role: str
    sender: str
    complete: bool


class EndedTransfers:
    """The ended transfers by number, each for TOMBSTONE_S."""

    def __init__(self, bus: ControlBus, control_sender: ControlSender) -> None:
        self._bus = bus
        self._control_sender = control_sender
        self._ended: Expiring[int, EndedTransfer] = Expiring(MAX_TOMBSTONES, TOMBSTONE_S)

    def remember_ended(self, incoming: IncomingTransfer, now_s: float) -> None:
        ended = EndedTransfer(incoming.key, incoming.peer_role, incoming.peer, incoming.complete)
        self._ended.put(incoming.transfer, ended, now_s)

    def is_known(self, key: TransferKey, transfer: int) -> bool:
        """Whether a transfer of that name and number has ended here lately."""
        ended = self._ended.get(transfer)
        return ended is not None and ended.key == key

    def handle_message(self, key: TransferKey, message: SenderMessage) -> None:
        """The first answer may be lost, so that the sender asks again."""
        ended = self._ended.get(message.transfer)
        if ended is None or ended.key != key or isinstance(message, KvReady | KvAbortAck):
            STALE_MESSAGES.inc()
            return
        answer: KvAbortAck | KvReceived | KvAbort
        if isinstance(message, KvAbort):
            answer = KvAbortAck(message.transfer)
        elif ended.complete:
            answer = KvReceived(message.transfer)
        else:
            answer = KvAbort(message.transfer, "the decode worker gave this transfer up")
        inbox = subjects.inbox(ended.role, ended.sender)
        self._control_sender.publish(inbox, answer, self._bus.envelope(*key))

    def forget_expired(self, now_s: float) -> None:
        self._ended.forget(now_s)
