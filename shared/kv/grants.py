"""What a receiver lets its senders send: grants, and credit as it is used."""

from __future__ import annotations

from collections.abc import Callable

from shared.deadline import Clock
from shared.kv.credit import CreditPool
from shared.kv.ingress import Ingress, IngressPhase
from shared.kv.limits import RECEIVER_WINDOW_BYTES
from shared.messages import KvCredit, KvGrant, Message


class Grants:
    def __init__(
        self, subject: str, layout: str, tell: Callable[[Ingress, Message], None], clock: Clock
    ) -> None:
        self._subject = subject
        self._layout = layout
        self._tell = tell
        self._clock = clock
        self.credit = CreditPool(RECEIVER_WINDOW_BYTES)

    def over_shm(self, ingress: Ingress) -> None:
        self._grant(ingress, "shm", 0)

    def over_nats(self, ingress: Ingress) -> None:
        """Now, or when there is credit for it."""
        self.credit.request(ingress)
        self._grant_credit()

    def give_back(self, ingress: Ingress) -> None:
        """The transfer is over, which may let the next one start."""
        self.credit.give_back(ingress)
        self._grant_credit()

    def tell_again(self, ingress: Ingress) -> None:
        grant = KvGrant(
            ingress.transfer,
            self._layout,
            ingress.first_block,
            ingress.num_blocks,
            ingress.transport,
            self._subject,
            ingress.window_bytes,
        )
        self._tell(ingress, grant)

    def tell_credit(self, ingress: Ingress) -> None:
        """Acknowledge what has landed, when it is enough or late. What moves gets a full window."""
        moving = ingress.transport == "nats" and ingress.phase is IngressPhase.RECEIVING and ingress.heard
        if not moving:
            return
        ingress.grow_window(self.credit.grow(ingress))
        received = ingress.take_credit(self._clock.monotonic_s())
        if received is not None:
            self._tell(ingress, KvCredit(ingress.transfer, received, ingress.window_bytes))

    def _grant_credit(self) -> None:
        while (granted := self.credit.take()) is not None:
            self._grant(granted[0], "nats", granted[1])

    def _grant(self, ingress: Ingress, transport: str, window_bytes: int) -> None:
        ingress.grant(transport, window_bytes, self._clock.monotonic_s())
        self.tell_again(ingress)
