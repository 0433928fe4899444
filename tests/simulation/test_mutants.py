"""Planted faults: each changes one place of the source as it is, and the swarm finds one that is put in."""

from __future__ import annotations

import importlib

import pytest

from tests.simulation.mutants import swapped
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.planted import MUTANTS
from tests.simulation.mutants.swapped import changed, planted, source_of


def test_what_a_mutant_changes_stands_in_the_source_once() -> None:
    for mutant in MUTANTS:
        source = source_of(importlib.import_module(mutant.module))
        before, after = (
            compile(source, mutant.module, "exec"),
            compile(changed(source, mutant), mutant.module, "exec"),
        )
        assert after != before, mutant.name


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


def test_a_planted_fault_changes_what_was_imported_before_and_can_be_taken_out() -> None:
    imported = swapped.changed
    fault = Mutant(
        "it changes nothing",
        "tests.simulation.mutants.swapped",
        "return source.replace(mutant.right, mutant.wrong)",
        "return source",
    )
    with planted(fault):
        assert imported("right", Mutant("", "", "right", "wrong")) == "right"
    assert imported("right", Mutant("", "", "right", "wrong")) == "wrong"


def test_a_mutant_of_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="stands 0 times"):
        changed("a source", Mutant("another", "", "right", "wrong"))
    with pytest.raises(ValueError, match="stands 2 times"):
        changed("right, right", Mutant("another", "", "right", "wrong"))
