"""Tokens that keep Python's lock for long are counted, and end their sequence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.engine.sampling import lock_time
from shared.engine.sampling.grammar import MAX_LOCKED_S, REPLAYED_AT_ONCE, Grammars, GrammarState
from shared.engine.sampling.grammar_row import GrammarRow
from shared.engine.sampling.lock_time import ORDINARY_S, LockTime
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.grammar import EOS, VOCAB

LETTER = 3 + ord("a") - 32
SLOW_S = 0.3 * MAX_LOCKED_S


def clock(step_s: float) -> SimpleNamespace:
    """A clock on which everything takes so long."""
    readings: Iterator[float] = (step_s * number for number in count())
    return SimpleNamespace(thread_time=lambda: next(readings))


@pytest.fixture(scope="module")
def grammars(llm_dir: Path) -> Grammars:
    return Grammars(str(llm_dir), VOCAB, (EOS,))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_time, "time", clock(SLOW_S))


@pytest.mark.parametrize(("took_s", "spent_s"), [(ORDINARY_S / 2, 0.0), (2 * ORDINARY_S, 2 * ORDINARY_S)])
def test_what_is_ordinary_is_not_counted(
    took_s: float, spent_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_time, "time", clock(took_s))
    spent = LockTime()
    with spent.counted():
        pass
    assert (spent.last_s, spent.spent_s) == pytest.approx((took_s, spent_s))


def test_it_is_the_time_of_the_thread() -> None:
    spent = LockTime()
    with spent.counted():
        sum(range(1000))
    assert spent.last_s > 0


@pytest.mark.usefixtures("slow")
def test_a_sequence_whose_tokens_hold_up_others_ends(grammars: Grammars) -> None:
    row = GrammarRow(GrammarState(grammars.compile(Grammar("regex", "[a-z]{9}"))))
    faults = []
    for _ in range(4):
        job = row.begin(())
        assert job is not None
        job.run()
        faults.append(row.fault)
        row.end_draw()
        row.state.advance(LETTER)
    job = row.begin(())
    assert job is not None
    job.run()
    assert faults == [None] * 4
    assert isinstance(row.fault, InvalidRequest)
    assert "over 100 ms; simplify it" in row.fault.message


@pytest.mark.usefixtures("slow")
def test_an_output_is_taken_in_again_in_ever_smaller_pieces_and_not_for_longer_than_that(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = [LETTER] * (REPLAYED_AT_ONCE + 20)
    state = GrammarState(grammars.compile(Grammar("regex", "[a-z]{90}")), output)
    pieces: list[int] = []

    def noted() -> Iterator[tuple[int, list[int]]]:
        for start, piece in GrammarState._pieces(state, output, REPLAYED_AT_ONCE):
            pieces.append(len(piece))
            yield start, piece

    monkeypatch.setattr(state, "_pieces", lambda *_: noted())
    with pytest.raises(InvalidRequest, match="kept all others waiting"):
        state.open_matcher()
    assert pieces == [REPLAYED_AT_ONCE, 1, 1, 1]
