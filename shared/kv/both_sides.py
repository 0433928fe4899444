"""Hold both sides of the KV transfers of a worker that receives some and sends others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared.bus import Delivery
from shared.engine import Engine
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import OnComplete, OnFailed, OnReleased
from shared.messages import KvAbort, KvAbortAck

MakeReceiver = Callable[[Engine, OnComplete, OnFailed, OnReleased], KvReceiver]
"""Makes what receives KV into the pool of an engine."""


class BothSides:
    """The transfers that come in, and those that go out; no two of one name."""

    def __init__(self, receiver: KvReceiver, sender: KvSender) -> None:
        self._receiver = receiver
        self._sender = sender

    async def run_transfers(self) -> None:
        """Send and receive until cancelled; the service supervises this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receiver.run_transfers())
            tasks.create_task(self._sender.run_transfers())

    def handle_message(self, delivery: Delivery) -> bool:
        """Take a KV message from the inbox; False when it is not one. An abort may be of either side; where
        nobody knows its transfer it came before that was offered."""
        message, envelope = delivery.message, delivery.envelope
        if isinstance(message, KvAbort | KvAbortAck):
            key = (envelope.request_id, envelope.epoch)
            ours = self._sender.is_between(key, delivery.sender)
            if not ours and self._receiver.is_known(key, message.transfer):
                return self._receiver.handle_message(delivery)
        return self._sender.handle_message(delivery) or self._receiver.handle_message(delivery)

    def peer_lost(self, instance: str) -> None:
        """Handle the loss of a worker of another role. Of others of its own role nobody hears here: their
        silence is noticed."""
        self._receiver.peer_lost(instance)
        self._sender.peer_lost(instance)

    def close(self) -> None:
        self._receiver.close()
