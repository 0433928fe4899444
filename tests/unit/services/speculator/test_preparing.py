"""Branches for what may come of a round, beside what a draft for that outcome would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.speculator.draft_sequences import DraftSequences
from services.speculator.drafting import Drafter, Wish
from services.speculator.preparing import Prepared, Preparer, Round
from shared.engine import Engine
from shared.engine.cost_model import Features
from shared.sampling.parameters import SamplingParams
from shared.worker.drafts.draft_tree import DraftTree
from tests.support.clock import FakeClock
from tests.support.engine import FANCY, GREEDY, make_engine
from tests.support.readmitting_draft import readmitting_draft

LONG = replace(GREEDY, max_tokens=400)
SAMPLED = SamplingParams(temperature=0.9, seed=5, max_tokens=400, ignore_eos=True)
PROMPT = [(3 * index + 5) % 60 + 2 for index in range(30)]
FAN, COUNT = 2, 3


class Speculator:
    """One session, as the actor leads it."""

    def __init__(self, folder: Path, params: SamplingParams, **fields: int) -> None:
        self.engine = make_engine(folder, **fields)
        self.drafter = Drafter()
        self.clock = FakeClock()
        self.preparer = Preparer(self.drafter.sequences, self.clock)
        self.params = params
        self.tokens = list(PROMPT)
        self.told = 0

    def draft(self) -> DraftTree:
        wish = Wish(
            "r/1", self.told, tuple(self.tokens[self.told :]), len(PROMPT), self.params, 4, "", FAN + 1
        )
        self.told = len(self.tokens)
        return DraftTree(self.told, self.drafter.draft(self.engine, [wish]).token_ids["r/1"])

    def prepare(
        self,
        tree: DraftTree,
        may_go_on: Callable[[], bool] = lambda: True,
        *,
        until_s: float | None = None,
        most_accepted: int | None = None,
    ) -> DraftTree:
        prepared = self.prepared(tree, may_go_on, until_s=until_s, most_accepted=most_accepted)
        return replace(tree, base=self.told, branches=prepared.branches.get("r/1", ()))

    def prepared(
        self,
        tree: DraftTree,
        may_go_on: Callable[[], bool] = lambda: True,
        *,
        until_s: float | None = None,
        most_accepted: int | None = None,
    ) -> Prepared:
        most = len(tree.token_ids) if most_accepted is None else most_accepted
        untold = tuple(self.tokens[self.told :])
        round_ = Round("r/1", self.told, untold, tree.token_ids, COUNT, FAN, most, until_s)
        self.told = len(self.tokens)
        prepared = self.preparer.prepare(self.engine, [round_], may_go_on)
        self.engine.check()
        assert not self.engine.has_work
        return prepared


def learn_a_millisecond_a_step_and_row(engine: Engine) -> None:
    for rows in 20 * [*range(1, 40)]:  # until the real steps have faded
        engine.cost.observe(Features(rows, rows, rows * 30), 1000 + 1000 * rows)
    assert engine.cost.ready


@pytest.fixture
def anew(model_dir: Path) -> Engine:
    return make_engine(model_dir)


@pytest.mark.parametrize("params", [LONG, SAMPLED, replace(FANCY, max_tokens=400, min_tokens=300)])
def test_each_branch_is_what_a_draft_for_its_outcome_would_be(
    model_dir: Path, anew: Engine, params: SamplingParams
) -> None:
    """Three rounds, which end otherwise each time; the branch of one is verified in the next."""
    speculator = Speculator(model_dir, params)
    tree = speculator.draft()
    for ending in (1, 0, 4):
        tree = speculator.prepare(tree)
        places = {branch.accepted for branch in tree.branches}
        assert places == set(range(len(tree.token_ids) + 1))
        assert len(tree.branches) == len({(each.accepted, each.bonus) for each in tree.branches})
        for branch in tree.branches:
            path = (*tree.token_ids[: branch.accepted], branch.bonus)
            wish = Wish("x", 0, (*speculator.tokens, *path), len(PROMPT), params, COUNT)
            assert branch.token_ids == readmitting_draft(anew, [wish])["x"]
        came = [each for each in tree.branches if each.accepted == min(ending, len(tree.token_ids))][-1]
        speculator.tokens += (*tree.token_ids[: came.accepted], came.bonus)
        tree = DraftTree(len(speculator.tokens), came.token_ids)


def test_what_was_prepared_is_not_computed_again(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    tree = speculator.prepare(speculator.draft())
    came = next(branch for branch in tree.branches if branch.accepted == 2)
    speculator.tokens += (*tree.token_ids[:2], came.bonus)
    rows: list[int] = []
    step = speculator.engine.step

    def noting() -> object:
        result = step()
        rows.append(result.batch_tokens)
        return result

    speculator.engine.step = noting  # type: ignore[assignment, method-assign]
    following = speculator.prepare(DraftTree(len(speculator.tokens), came.token_ids))
    assert max(rows) <= len(following.branches)  # a token a branch and step, and none of the text


def test_the_likeliest_come_first_and_a_narrow_engine_prepares_fewer(model_dir: Path) -> None:
    wide, narrow = Speculator(model_dir, SAMPLED), Speculator(model_dir, SAMPLED, max_sequences=4)
    all_of_them = wide.prepare(wide.draft()).branches
    some = narrow.prepare(narrow.draft()).branches
    assert 1 < len(some) <= 4 < len(all_of_them)
    assert set(some) <= set(all_of_them[: len(some) + 2])


def test_a_round_that_has_nothing_to_verify_yet_ends_with_one_token(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    tree = speculator.prepare(speculator.draft(), most_accepted=0)
    assert [branch.accepted for branch in tree.branches] == [0] * FAN


def test_where_somebody_waits_it_stops_with_what_it_has(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    tree = speculator.draft()
    steps = iter([True, False])
    tree = speculator.prepare(tree, lambda: next(steps))
    assert {len(branch.token_ids) for branch in tree.branches} == {1}
    speculator.tokens += tree.token_ids[:1]
    assert speculator.prepare(DraftTree(0, tree.token_ids[1:]), lambda: False).branches == ()
    assert set(speculator.engine.held()) == {speculator.drafter.sequences.main("r/1")}
    assert speculator.draft().token_ids  # and can be drafted for again


def test_with_little_time_there_are_fewer_and_shorter_ones(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    tree = speculator.draft()
    learn_a_millisecond_a_step_and_row(speculator.engine)
    few = speculator.prepare(tree, until_s=speculator.clock.monotonic_s() + 0.0125)
    assert 1 <= len(few.branches) <= 3
    assert {len(branch.token_ids) for branch in few.branches} <= {1, 2, 3}


def test_as_many_are_prepared_as_there_is_time_for(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    tree = speculator.draft()
    learn_a_millisecond_a_step_and_row(speculator.engine)
    steps_ms = (1 + COUNT) * (1 + 8.5)  # eight of ten outcomes
    several = speculator.prepare(tree, until_s=speculator.clock.monotonic_s() + steps_ms / 1000)
    assert len(several.branches) == 8
    assert {len(branch.token_ids) for branch in several.branches} == {COUNT}


def test_branches_are_shorter_where_steps_take_longer_than_they_were_thought_to(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    tree = speculator.draft()
    learn_a_millisecond_a_step_and_row(speculator.engine)
    clock = speculator.clock

    def goes_on_later() -> bool:
        clock.advance(0.030)
        return True

    several = speculator.prepare(tree, goes_on_later, until_s=clock.monotonic_s() + 0.080)
    assert several.branches
    assert {len(branch.token_ids) for branch in several.branches} <= {1, COUNT - 1}


def test_a_session_of_which_the_engine_has_other_guesses_is_forgotten(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    speculator.draft()
    prepared = speculator.prepared(DraftTree(0, (1, 2, 3)))
    assert prepared.branches == {}
    assert prepared.forgotten == {"r/1"}
    assert speculator.engine.held() == {}


def test_branches_give_way_before_any_session_does(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG, kv_blocks=12)
    speculator.prepare(speculator.draft())
    assert len(speculator.engine.held()) > 1
    other = Wish("s/1", 0, tuple(range(2, 62)) * 2, 120, LONG, 4)
    drafted = speculator.drafter.draft(speculator.engine, [other])
    assert (set(drafted.token_ids), drafted.forgotten) == ({"s/1"}, frozenset())
    assert set(speculator.engine.held()) == {"r/1", "s/1"}


def test_all_of_a_session_is_given_back(model_dir: Path) -> None:
    speculator = Speculator(model_dir, LONG)
    speculator.prepare(speculator.draft())
    sequences: DraftSequences = speculator.drafter.sequences
    sequences.release(speculator.engine, "r/1")
    sequences.release(speculator.engine, "nobody/1")
    assert speculator.engine.held() == {}
    assert list(sequences) == []
