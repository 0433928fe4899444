"""A keeper looks whether its process runs only while it knows something that it would forget."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.keys import key_keeper
from services.gateway.keys.key_account import KeyAccount, outweighs
from services.gateway.keys.key_keeper import KeyKeeper
from services.gateway.keys.rate_limits import NO_LIMIT, KeyLedger
from shared.deadline import Deadline
from shared.files.api_key_file import ApiKey
from shared.messages import KeyClaimed
from tests.support.clock import FakeClock

HERE, OTHER = "gateway-0", "gateway-1"


class Looks(FakeClock):
    """Counts how often it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def monotonic_s(self) -> float:
        self.count += 1
        return super().monotonic_s()


@pytest.fixture
def account() -> KeyAccount:
    kept_here = next(name for name in map(str, range(100)) if outweighs(name, HERE, OTHER))
    return KeyAccount(kept_here, KeyLedger(ApiKey("web", "acme", kept_here), FakeClock()))


def keeper_of(account: KeyAccount, clock: FakeClock) -> KeyKeeper:
    view = SimpleNamespace(
        heartbeat=SimpleNamespace(role="gateway", instance=OTHER, state="ready"), suspect=False
    )

    async def ask(*_asked: object) -> KeyClaimed:
        return KeyClaimed(NO_LIMIT, NO_LIMIT, uses=())

    bus: Any = SimpleNamespace(on_reconnect=lambda _: None, ask=ask, envelope=lambda **_: None)
    fleet: Any = SimpleNamespace(on_lost=lambda _: None, all=lambda: [view], instances=lambda _role: [view])
    return KeyKeeper(HERE, bus, fleet, lambda _: account, lambda: [account], clock, 1)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_it_rests_until_others_are_heard_and_again_once_that_is_forgotten(
    account: KeyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_keeper, "TICK_S", 0)
    clock = Looks()
    keeper = keeper_of(account, clock)
    watch = asyncio.create_task(keeper.watch())
    try:
        began = clock.count
        await turns()
        assert clock.count == began
        await keeper.ready(account, Deadline.after(5.0))
        assert account.heard == {OTHER}
        heard = clock.count
        await turns()
        assert clock.count > heard, "it looks as long as it knows something"
        clock.advance(key_keeper.HELD_UP_S + 1)
        await turns()
        assert account.heard == set()
        forgotten = clock.count
        await turns()
        assert clock.count == forgotten
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
