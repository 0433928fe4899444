"""The speculator's mailbox, with a real engine; the test is the bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.speculator.actor import MOST_GUESSED_FROM, SpeculatorActor
from services.speculator.config import SpeculatorConfig
from shared.engine import Engine
from shared.engine.cost_model import Features
from shared.errors import Overloaded
from shared.messages import DraftBlock, DraftClose, DraftCommit, DraftOpen, DraftResync, pack_ids
from shared.process.service import Service
from shared.worker.drafts.draft_tree import trees_of
from shared.worker.drafts.prefix_digest import PrefixDigest
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.engine import make_engine
from tests.support.metric import value
from tests.support.noted_bus import NotedBus
from tests.support.sampling import sampling
from tests.support.wait import until

OPEN = DraftOpen(pack_ids((1, 2, 3, 4)), 4, sampling(), "decode-0")
COMMIT = DraftCommit("decode-0", ("r",), (1,), (4,), ((5,),), (0,))
CLOSE = DraftClose(("r",), (1,))


class DraftActor(SpeculatorActor):
    """Its mailbox is in the hands of the test."""

    def __init__(self, llm_dir: Path) -> None:
        service = Service("speculator", SpeculatorConfig(), "speculator-0")
        self.sent = service.bus = NotedBus()
        super().__init__(service, lambda: make_engine(llm_dir, kv_blocks=32), PrefixMirror())

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


# ---- ahead of time ----

DECODE = "penstock.decode.decode-0"
PROMPT = (1, 2, 3, 4)


def commit(
    base: int, tokens: tuple[int, ...], *, fan: int = 2, within_us: int = 0, digest: bytes = b""
) -> DraftCommit:
    return DraftCommit("decode-0", ("r",), (1,), (base,), (tokens,), (4,), (fan,), (3,), within_us, (digest,))


async def answers(speculator: DraftActor, *messages: DraftOpen | DraftCommit) -> list[DraftBlock]:
    """What it says to these, and until it has nothing left to do."""
    told = len(speculator.sent.to(DECODE))
    for message in messages:
        speculator.receive(speculator.sent.asked(message, "r", 1))
    await speculator.handle_all()
    await speculator.turn()
    while speculator._driver.stepping:
        await until(lambda: speculator._driver._step is not None and speculator._driver._step.done())
        await speculator.turn()
    sent = speculator.sent.to(DECODE)[told:]
    assert all(isinstance(message, DraftBlock) for message in sent)
    return [message for message in sent if isinstance(message, DraftBlock)]


async def test_a_draft_is_followed_by_branches_for_the_token_that_comes_meanwhile(
    speculator: DraftActor,
) -> None:
    plain, ahead = await answers(speculator, OPEN, commit(4, ()))
    assert (plain.bases, len(plain.token_ids[0]), plain.branches) == ((4,), 4, ((),))
    assert (ahead.bases, ahead.token_ids) == (plain.bases, plain.token_ids)
    ((_, _, tree, took_us),) = trees_of(ahead)
    assert [(each.accepted, len(each.token_ids)) for each in tree.branches] == [(0, 3), (0, 3)]
    assert took_us > 0


async def test_what_comes_of_a_round_is_prepared_while_it_runs(speculator: DraftActor) -> None:
    _, ahead = await answers(speculator, OPEN, commit(4, ()))
    ((_, _, tree, _),) = trees_of(ahead)
    (ahead,) = await answers(speculator, commit(4, (tree.branches[1].bonus,)))  # as decode drew instead
    ((_, _, following, _),) = trees_of(ahead)
    assert (following.base, following.token_ids) == (5, tree.branches[1].token_ids)
    assert {each.accepted for each in following.branches} == {0, 1, 2, 3}
    plain, _ = await answers(speculator, commit(5, (30, 31)))  # nothing of that
    assert (plain.bases, plain.branches) == ((7,), ((),))


async def test_where_the_cores_are_not_its_own_nothing_is_prepared(
    speculator: DraftActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "shares_cores_now", property(lambda _: True))
    (plain,) = await answers(speculator, OPEN, commit(4, ()))
    (again,) = await answers(speculator, commit(4, plain.token_ids[0][:1]))
    assert (again.bases, again.branches) == ((5,), ((),))


@pytest.mark.parametrize(("steps", "answered"), [(1.9, 1), (2.1, 2)])
async def test_nothing_is_prepared_where_two_steps_are_too_many(
    speculator: DraftActor, steps: float, answered: int
) -> None:
    step_us = 30e6  # so that what this machine takes for one is nothing
    for _ in range(200):
        speculator._driver.engine.cost.observe(Features(1, 1, 0), step_us)
    found = await answers(speculator, OPEN, commit(4, (), within_us=round(steps * step_us)))
    assert len(found) == answered


async def test_a_wish_ends_what_is_prepared_for_others(speculator: DraftActor) -> None:
    await answers(speculator, OPEN, commit(4, ()))
    assert speculator._may_go_on()
    speculator.receive(speculator.sent.asked(commit(4, (30,)), "", 0))
    await speculator.handle_all()
    assert not speculator._may_go_on()
    assert await answers(speculator)
    assert speculator._may_go_on()


async def test_a_session_with_other_tokens_is_to_be_opened_again(speculator: DraftActor) -> None:
    diverged = value("penstock_draft_divergences_total")
    speculator.receive(speculator.sent.asked(OPEN, "r", 1))
    digest = PrefixDigest([*PROMPT[:3], 9, 7]).value
    speculator.receive(speculator.sent.asked(commit(4, (7,), digest=digest), "", 0))
    await speculator.handle_all()
    assert speculator.sent.to(DECODE) == [DraftResync(("r",), (1,))]
    assert value("penstock_draft_divergences_total") == diverged + 1
