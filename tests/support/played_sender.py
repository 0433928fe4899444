"""The sending side of a decode worker's KV, as a test plays it: it says when all is sent, failed or
released."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from shared.bus import Delivery
from shared.engine import Engine
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import OnFailed, OnReleased, OnSent, TransferKey


class PlayedSender:
    """A KvSender to its decode worker. `blocks` is how many of the first group it has been told of."""

    def __init__(self, on_released: OnReleased, on_failed: OnFailed, on_sent: OnSent) -> None:
        self.release = on_released
        self.fail = on_failed
        self.tell_sent = on_sent
        self.offered: list[tuple[TransferKey, str]] = []
        self.blocks: list[int] = []
        self.finished: list[tuple[tuple[int, ...], str]] = []
        self.aborted: list[TransferKey] = []
        self.forgotten: list[TransferKey] = []

    @classmethod
    def make(cls, _: Engine, on_released: OnReleased, on_failed: OnFailed, on_sent: OnSent) -> KvSender:
        return cast(KvSender, cls(on_released, on_failed, on_sent))

    async def run_transfers(self) -> None:
        await asyncio.Event().wait()

    def peer_lost(self, instance: str) -> None: ...

    def is_between(self, _key: TransferKey, _peer: str) -> bool:
        return False

    def forget_ended(self, key: TransferKey) -> None:
        self.forgotten.append(key)

    def handle_message(self, _delivery: Delivery) -> bool:
        return False

    def offer_transfer(
        self,
        request_id: str,
        epoch: int,
        _origin: str,
        decode: str,
        tables: Sequence[Sequence[int]],
        *_: object,
        grows: bool,
    ) -> None:
        assert grows
        self.offered.append(((request_id, epoch), decode))
        self.blocks.append(len(tables[0]))

    def extend_transfer(self, _key: TransferKey, tables: Sequence[Sequence[int]]) -> None:
        self.blocks.append(len(tables[0]))

    def finish_transfer(
        self, _key: TransferKey, token_ids: Sequence[int], finish: str, _sampled_s: float | None = None
    ) -> None:
        self.finished.append((tuple(token_ids), finish))

    def abort_transfer(self, key: TransferKey, _reason: str) -> None:
        self.aborted.append(key)
