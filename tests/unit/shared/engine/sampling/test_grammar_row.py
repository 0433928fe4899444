"""When the masks of a sequence count as slow, and when as too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.engine.sampling.grammar import Grammars, GrammarState
from shared.engine.sampling.grammar_row import MAX_MASK_S, MAX_MASKS_S, QUICK_IN_TURN, GrammarRow
from shared.engine.sampling.mask_threads import STUCK_S, MaskJob
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.grammar import EOS, VOCAB


@pytest.fixture
def row(llm_dir: Path) -> GrammarRow:
    grammars = Grammars(str(llm_dir), VOCAB, (EOS,))
    return GrammarRow(GrammarState(grammars.compile(Grammar("regex", "[a-z]{9}"))))


def began(row: GrammarRow, took_s: float, drafts: tuple[int, ...] = ()) -> MaskJob:
    """Its next masks, done, as if they had taken so long."""
    job = row.begin(drafts)
    assert job is not None
    job.run()
    job._began_s = job._mask_began_s = 0.0
    job._ended_s = took_s
    return job


def draw(row: GrammarRow, took_s: float) -> None:
    began(row, took_s)
    row.end_draw()


@pytest.mark.parametrize(("took_s", "fails"), [(MAX_MASK_S, False), (MAX_MASK_S + 1e-6, True)])
def test_a_mask_may_take_its_budget_and_no_more(row: GrammarRow, took_s: float, fails: bool) -> None:
    began(row, took_s)
    assert isinstance(row.fault, InvalidRequest) is fails
    assert row.is_ready


def test_the_budget_of_masks_behind_drafts_is_by_their_number(row: GrammarRow) -> None:
    letter = 3 + ord("a") - 32
    began(row, 3 * MAX_MASK_S - 1e-9, (letter, letter))
    assert len(row.masks(3)) == 3
    assert row.fault is None


@pytest.mark.parametrize(("more_s", "fails"), [(0.0, False), (1e-6, True)])
def test_the_masks_of_a_sequence_have_a_budget_together(row: GrammarRow, more_s: float, fails: bool) -> None:
    whole = round(MAX_MASKS_S / MAX_MASK_S)
    for _ in range(whole - 1):
        draw(row, MAX_MASK_S)
    began(row, MAX_MASK_S)
    job = row._job
    assert job is not None
    job._ended_s += more_s
    row._spent_s = MAX_MASKS_S - MAX_MASK_S  # sums of floats apart
    assert isinstance(row.fault, InvalidRequest) is fails


def test_a_sequence_is_proven_after_quick_masks_and_slow_once_it_was_late(row: GrammarRow) -> None:
    for _ in range(QUICK_IN_TURN):
        assert not row.is_proven
        draw(row, STUCK_S / 2)
    states = [(row.is_proven, row.is_slow)]
    began(row, STUCK_S)
    row.miss()
    row.end_draw()
    for _ in range(2 * QUICK_IN_TURN):
        states.append((row.is_proven, row.is_slow))
        draw(row, STUCK_S / 2)
    states.append((row.is_proven, row.is_slow))
    assert states == [(True, False), *[(False, True)] * 2 * QUICK_IN_TURN, (True, False)]


def test_a_mask_that_only_waited_for_a_core_is_late_and_not_slow(row: GrammarRow) -> None:
    began(row, STUCK_S / 2)
    row.miss()
    assert not row.is_slow


def test_a_step_computes_a_slow_mask_of_a_sequence_itself_only_once(row: GrammarRow) -> None:
    job = began(row, STUCK_S)
    job.held_up_step = True
    row.end_draw()
    assert row.is_slow


def test_masks_are_begun_once(row: GrammarRow) -> None:
    assert row.begin(()) is not None
    assert row.begin(()) is None
    assert not row.is_ready
