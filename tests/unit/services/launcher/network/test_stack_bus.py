"""A stack's connection to its bus: it hears its services, asks them to drain, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from services.launcher.network.own_beats import OwnBeats
from services.launcher.network.stack_bus import StackBus
from services.launcher.processes.instance import InstanceSpec
from services.launcher.watch.troubles import Troubles
from shared.bus import Bus, Delivery
from shared.bus.subjects import inbox
from shared.messages import Accepted, Drain

SPEC = InstanceSpec("decode", "decode-0", (), {})


@dataclass(eq=False)
class Launcher:
    """What a stack is to its bus."""

    url: str
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bus = StackBus(
            self.url, "", OwnBeats(lambda: None), Troubles(self.said.append), self.said.append
        )


@pytest.fixture
async def launcher(nats_url: str) -> AsyncIterator[Launcher]:
    made = Launcher(nats_url)
    await made.bus.open()
    yield made
    await made.bus.close()


@pytest.fixture
async def worker(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="decode-0")
    yield bus
    await bus.close()


async def test_an_instance_that_answers_has_the_time_that_it_is_given(
    launcher: Launcher, worker: Bus
) -> None:
    heard: asyncio.Queue[Delivery] = asyncio.Queue(1)
    await worker.serve(inbox("decode", "decode-0"), heard.put_nowait)
    await worker.flush()
    asked = asyncio.create_task(launcher.bus.ask_to_drain(SPEC, 7.4))
    delivery = await heard.get()
    assert delivery.message == Drain(7)
    await worker.answer(delivery.envelope, Accepted())
    assert await asked


async def test_an_instance_that_nobody_hears_has_not_been_asked(launcher: Launcher) -> None:
    assert not await launcher.bus.ask_to_drain(SPEC, 7.0)


async def test_a_connection_that_is_gone_for_good_is_made_anew(launcher: Launcher) -> None:
    lost = launcher.bus._bus
    assert lost is not None
    lost.lost.set()
    await launcher.bus.keep()
    assert launcher.bus._bus is not lost
    assert launcher.said == ["the launcher hears the services again"]


async def test_what_keeps_it_from_coming_back_is_said_once(launcher: Launcher) -> None:
    lost = launcher.bus._bus
    assert lost is not None
    lost.lost.set()
    launcher.bus.credentials = "/nowhere"
    for _ in range(2):
        await launcher.bus.keep()
    assert len(launcher.said) == 1
    assert "and again" in launcher.said[0]
