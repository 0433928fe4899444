"""Handle a sender's messages of transfers that it does not hold: they came too early, or it is over."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.bus import subjects
from shared.kv.control_sender import ControlSender
from shared.kv.expiring import Expiring
from shared.kv.limits import LEASE_S, MAX_EARLY, MAX_TOMBSTONES, TOMBSTONE_S
from shared.kv.transfer_key import TransferKey
from shared.messages import Envelope, KvAbort, KvAbortAck, KvCredit, KvGrant, KvMissing, KvReceived
from shared.telemetry.metrics import DROPPED_MESSAGES, STALE_MESSAGES

ReceiverMessage = KvGrant | KvCredit | KvMissing | KvReceived | KvAbort | KvAbortAck

_CHUNK_SUBJECT = re.compile(r"penstock\.kv\.([a-z0-9-]{1,63})\.[0-9]{1,20}")


def decode_of(grant: KvGrant) -> str:
    """The instance that the grant's subject belongs to; "" when it is no subject for chunks."""
    found = _CHUNK_SUBJECT.fullmatch(grant.subject)
    return found.group(1) if found else ""


@dataclass(frozen=True, slots=True)
class EarlyMessage:
    """A message that overtook its request: the grant, or (None) the receiver's abort."""

    grant: KvGrant | None


class UnknownTransfers:
    """Early messages until their transfer is offered, and the tombstones of those that have ended."""

    def __init__(self, control_sender: ControlSender) -> None:
        self._control_sender = control_sender
        self._early: Expiring[tuple[TransferKey, str], EarlyMessage] = Expiring(MAX_EARLY, LEASE_S)
        """The messages by transfer and sender: nobody knows yet which decode worker the transfer is for."""
        self._ended: Expiring[TransferKey, tuple[str, str]] = Expiring(MAX_TOMBSTONES, TOMBSTONE_S)
        """The receivers, each by its role and instance."""

    def take_early(self, key: TransferKey, decode: str) -> EarlyMessage | None:
        """Take what came of `decode` ("" if it did not say who it is) before the transfer was offered."""
        return self._early.pop((key, decode)) or self._early.pop((key, ""))

    def ended_at(self, key: TransferKey) -> str | None:
        """The worker that an ended transfer was for; None where none of that name is remembered."""
        ended = self._ended.get(key)
        return None if ended is None else ended[1]

    def remember_ended(self, key: TransferKey, role: str, receiver: str, now_s: float) -> None:
        self._ended.put(key, (role, receiver), now_s)

    def forget_ended(self, key: TransferKey) -> None:
        """A transfer of that name may be offered again."""
        self._ended.pop(key)

    def handle_message(
        self, key: TransferKey, message: ReceiverMessage, envelope: Envelope, sender: str, now_s: float
    ) -> None:
        role, ended_at = self._ended.get(key) or ("decode", None)
        if ended_at is not None and sender not in ("", ended_at):
            DROPPED_MESSAGES.labels("foreign_kv").inc()
        elif isinstance(message, KvGrant) and ended_at is None:
            known = self._early.get((key, sender))
            if known is None or known.grant is not None:
                self._early.put((key, sender), EarlyMessage(message), now_s)
        elif isinstance(message, KvAbort):
            early = self._early.get((key, sender))
            decode = ended_at or (decode_of(early.grant) if early and early.grant else "")
            self._early.put((key, sender), EarlyMessage(None), now_s)
            if decode:
                self._send(role, decode, KvAbortAck(message.transfer), envelope)
        elif isinstance(message, KvGrant) and ended_at:
            # It ended here before the grant came: whoever waits for it must not wait for ever.
            gone = KvAbort(message.transfer, "the prefill worker holds nothing for this transfer")
            self._send(role, ended_at, gone, envelope)
        elif not isinstance(message, KvAbortAck):
            STALE_MESSAGES.inc()

    def forget_expired(self, now_s: float) -> None:
        self._early.forget(now_s)
        self._ended.forget(now_s)

    def _send(self, role: str, receiver: str, message: KvAbort | KvAbortAck, envelope: Envelope) -> None:
        self._control_sender.publish(subjects.inbox(role, receiver), message, envelope)
