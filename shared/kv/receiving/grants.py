"""Let senders send: a receiver's grants, and credit as it is used."""

from __future__ import annotations

from collections.abc import Callable

from shared.deadline import Clock
from shared.kv.limits import FIRST_WINDOW_BYTES, RECEIVER_WINDOW_BYTES
from shared.kv.receiving.credit import CreditPool
from shared.kv.receiving.incoming import IncomingPhase, IncomingTransfer
from shared.kv.transports import NATS, SHM, Transport
from shared.messages import KvCredit, KvGrant, Message
from shared.seams.buggify import BUGGIFY


class Grants:
    def __init__(
        self,
        subject: str,
        layout: str,
        send_control: Callable[[IncomingTransfer, Message], None],
        clock: Clock,
    ) -> None:
        self._subject = subject
        self._layout = layout
        self._send_control = send_control
        self._clock = clock
        one_window = BUGGIFY.takes("a receiver has credit for one transfer")
        self.credit = CreditPool(FIRST_WINDOW_BYTES if one_window else RECEIVER_WINDOW_BYTES)

    def over_shm(self, incoming: IncomingTransfer) -> None:
        self._grant(incoming, SHM, 0)

    def over_nats(self, incoming: IncomingTransfer) -> None:
        """Now, or when there is credit for it."""
        self.credit.request(incoming)
        self._grant_credit()

    def release(self, incoming: IncomingTransfer) -> None:
        """The transfer is over, which may let the next one start."""
        self.credit.release(incoming)
        self._grant_credit()

    def resend_grant(self, incoming: IncomingTransfer) -> None:
        grant = KvGrant(
            incoming.transfer,
            self._layout,
            incoming.blocks.first_blocks,
            incoming.blocks.end,
            incoming.transport_name,
            self._subject,
            incoming.window_bytes,
        )
        self._send_control(incoming, grant)

    def send_credit(self, incoming: IncomingTransfer) -> None:
        """Acknowledge what has landed, when it is enough or late. What moves gets a full window."""
        if incoming.transport is None or not incoming.transport.needs_credit:
            return
        if incoming.phase is not IncomingPhase.RECEIVING or not incoming.heard:
            return
        incoming.grow_window(self.credit.grow(incoming))
        received = incoming.take_credit(self._clock.monotonic_s())
        if received is not None:
            self._send_control(incoming, KvCredit(incoming.transfer, received, incoming.window_bytes))

    def _grant_credit(self) -> None:
        while (granted := self.credit.take()) is not None:
            self._grant(granted[0], NATS, granted[1])

    def _grant(self, incoming: IncomingTransfer, transport: Transport, window_bytes: int) -> None:
        incoming.grant(transport, window_bytes, self._clock.monotonic_s())
        self.resend_grant(incoming)
