"""The speculator's mailbox, with a real engine; the test is the bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.speculator.actor import MOST_GUESSED_FROM, SpeculatorActor
from services.speculator.config import SpeculatorConfig
from shared.errors import Overloaded
from shared.messages import DraftClose, DraftCommit, DraftOpen, pack_ids
from shared.process.service import Service
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.engine import make_engine
from tests.support.noted_bus import NotedBus
from tests.support.sampling import sampling

OPEN = DraftOpen(pack_ids((1, 2, 3, 4)), 4, sampling(), "decode-0")
COMMIT = DraftCommit("decode-0", ("r",), (1,), (4,), ((5,),), (0,))
CLOSE = DraftClose(("r",), (1,))


class DraftActor(SpeculatorActor):
    """Its mailbox is in the hands of the test."""

    def __init__(self, llm_dir: Path) -> None:
        service = Service("speculator", SpeculatorConfig(), "speculator-0")
        self.sent = service.bus = NotedBus()
        super().__init__(service, lambda: make_engine(llm_dir, kv_blocks=8), PrefixMirror())

    async def handle_all(self) -> None:
        while self.queued:
            await self._handle_waiting()


@pytest.fixture
async def speculator(llm_dir: Path) -> AsyncIterator[DraftActor]:
    speculator = DraftActor(llm_dir)
    await speculator.on_start()
    yield speculator
    await speculator.on_stop()


async def test_the_end_of_a_draft_finds_room_behind_all_that_came_while_nobody_read(
    speculator: DraftActor,
) -> None:
    """A session whose close is refused would stay until its lease ends."""
    speculator.receive(speculator.sent.asked(OPEN, "r", 1))
    await speculator.handle_all()
    assert len(speculator._sessions) == 1
    for _ in range(MOST_GUESSED_FROM):
        speculator.receive(speculator.sent.asked(COMMIT, "", 0))
    with pytest.raises(Overloaded):
        speculator.receive(speculator.sent.asked(COMMIT, "", 0))
    speculator.receive(speculator.sent.asked(CLOSE, "", 0))
    await speculator.handle_all()
    assert len(speculator._sessions) == 0
