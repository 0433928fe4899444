"""Drafts in the engine's thread: what is offered before each step, and what a round is said to have ended
with. A real engine, and drafts that know its answer, lie, or come for other places."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.decode.ahead.draft_offers import DraftOffers, DraftUse, Proposal, RoundEnd
from shared.engine import Engine
from shared.worker.drafts.draft_tree import DraftBranch, DraftTree
from tests.support.engine import GREEDY, admit, make_engine, undisturbed

PROMPT = [(7 * number + 3) % 97 for number in range(20)]
END = len(PROMPT)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> list[int]:
    return undisturbed(model_dir, PROMPT, GREEDY)


@pytest.fixture
def engine(model_dir: Path) -> Engine:
    """It has drawn the first token of sequence "a"."""
    engine = make_engine(model_dir, ngram_tokens=0)
    admit(engine, "a", PROMPT, GREEDY)
    engine.step()
    return engine


def wrong(token_id: int) -> int:
    return (token_id + 1) % 97


def ends(uses: list[DraftUse]) -> list[RoundEnd]:
    return [use.ended for use in uses if use.ended is not None]


def step(engine: Engine, offers: DraftOffers) -> tuple[list[DraftUse], int]:
    """Return what was told before a step, and how many drafts it then verified."""
    uses = offers.offer(engine)
    (output,) = engine.step().outputs
    return uses, output.proposed_drafts


def test_the_branch_for_the_outcome_of_a_round_is_offered_when_it_has_ended(
    engine: Engine, answer: list[int]
) -> None:
    offers = DraftOffers()
    ids = (answer[1], wrong(answer[2]), 5)
    branch = DraftBranch(1, answer[2], tuple(answer[3:5]))
    offers.take([Proposal("a", DraftTree(END + 1, ids, (DraftBranch(0, 4, (4,)), branch)), END + 1)])
    assert step(engine, offers) == ([DraftUse("a")], 3)
    assert engine.tokens_since("a", END) == answer[:3]
    assert step(engine, offers) == ([DraftUse("a", ended=RoundEnd.HIT)], 2)
    assert engine.tokens_since("a", END) == answer[:6]
    assert step(engine, offers) == ([DraftUse("a", ended=RoundEnd.LATE)], 0)  # nothing for the second round
    assert len(offers) == 0


def test_a_round_that_ends_another_way_is_a_miss_and_a_newer_draft_a_hit(
    engine: Engine, answer: list[int]
) -> None:
    offers = DraftOffers()
    tree = DraftTree(END + 1, (answer[1],), (DraftBranch(1, wrong(answer[2]), (5,)),))
    offers.take([Proposal("a", tree, END + 1)])
    step(engine, offers)
    assert ends(step(engine, offers)[0]) == [RoundEnd.MISSED]
    offers.take([Proposal("a", DraftTree(END + 4, (answer[4],)), END + 4)])
    step(engine, offers)
    offers.take(
        [Proposal("a", DraftTree(END + 4, (answer[4],), (DraftBranch(1, answer[5], (answer[6],)),)), 0)]
    )
    uses, verified = step(engine, offers)
    assert (ends(uses), verified) == ([RoundEnd.HIT], 1)


def test_a_draft_without_branches_that_is_of_no_use_is_late(engine: Engine, answer: list[int]) -> None:
    offers = DraftOffers()
    offers.take([Proposal("a", DraftTree(END, (wrong(answer[0]), 5, 6)), END)])
    assert offers.offer(engine) == [DraftUse("a", behind=1, late=3)]
    assert len(offers) == 0


def test_a_draft_for_an_earlier_place_replaces_none_for_a_later_one(
    engine: Engine, answer: list[int]
) -> None:
    offers = DraftOffers()
    offers.take([Proposal("a", DraftTree(END + 1, (answer[1], answer[2])), END + 1)])
    offers.take([Proposal("a", DraftTree(END, (answer[0], wrong(answer[1]))), END)])
    assert step(engine, offers)[1] == 2
    assert engine.tokens_since("a", END) == answer[:4]


def test_drafts_of_sequences_that_are_gone_are_forgotten(engine: Engine) -> None:
    offers = DraftOffers()
    offers.take([Proposal("gone", DraftTree(END, (1, 2)), END), Proposal("a", DraftTree(END + 9, (1,)), END)])
    engine.release("a")
    assert {use.late for use in offers.offer(engine)} == {1, 2}
    assert len(offers) == 0


def lies(rng: random.Random, answer: list[int], length: int) -> Iterator[DraftTree]:
    """Drafts of all kinds: right, wrong, for places long gone or not yet there, doubled, of ids that are
    none."""
    while True:
        base = END + rng.randint(-2, 3) + length - END
        at = max(0, base - END)
        ids = tuple(each if rng.random() < 0.7 else rng.randint(-3, 120) for each in answer[at : at + 4])
        branches = [
            DraftBranch(rng.randint(-1, 5), rng.choice([*answer, 3, 1 << 40]), tuple(answer[at + 1 : at + 4]))
            for _ in range(rng.randint(0, 6))
        ]
        yield DraftTree(base, ids, (*branches, *branches[:2]))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_the_answer_stays_what_it_is(engine: Engine, answer: list[int], seed: int) -> None:
    rng, offers = random.Random(seed), DraftOffers()
    length = END + 1
    while engine.has_work:
        trees = lies(rng, answer, length)
        offers.take([Proposal("a", next(trees), length) for _ in range(rng.randint(0, 3))])
        offers.offer(engine)
        for output in engine.step().outputs:
            assert list(output.token_ids) == answer[output.position - END :][: len(output.token_ids)]
            length = output.position + len(output.token_ids)
        engine.check()
    assert length == END + len(answer)
