"""KV that a test or a benchmark plays: it is there when that says so, and an abort acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from shared.engine import Engine
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.transfer_key import OnComplete, OnFailed, OnReleased, TransferKey
from shared.messages import Held


class PlayedReceiver:
    """A KvReceiver to its decode worker. `on_expected` hears of each transfer that is expected."""

    def __init__(self, on_complete: OnComplete, on_released: OnReleased) -> None:
        self.complete = on_complete
        self.acknowledge_abort = on_released
        self.drawn_s: float | None = None
        self.expected: list[TransferKey] = []
        self.aborted: list[TransferKey] = []
        self.on_expected: Callable[[TransferKey], None] = lambda _: None

    @classmethod
    def make(
        cls, _: Engine, on_complete: OnComplete, _failed: OnFailed, on_released: OnReleased
    ) -> KvReceiver:
        return cast(KvReceiver, cls(on_complete, on_released))

    async def start(self) -> None: ...
    def close(self) -> None: ...
    def peer_lost(self, instance: str) -> None: ...

    async def run_transfers(self) -> None:
        await asyncio.Event().wait()

    def expect_transfer(self, request_id: str, epoch: int, *_: object, **_how: object) -> None:
        self.expected.append((request_id, epoch))
        self.on_expected((request_id, epoch))

    def abort_transfer(self, key: TransferKey, _reason: str) -> None:
        self.aborted.append(key)

    def is_known(self, _key: TransferKey, _transfer: int) -> bool:
        return False

    def held(self) -> tuple[Held, ...]:
        return ()

    def sampled_s(self, _key: TransferKey) -> float | None:
        return self.drawn_s
