"""A short set of the drills (`make drills` holds all): what must hold on any machine, however slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.chaos import (
    drill_cancel,
    drill_crash,
    drill_deadline,
    drill_fairness,
    drill_identity,
    drill_overload,
    drill_roll,
    drill_scale,
)
from tests.chaos.world import Models, drill_stack
from tests.support.fresh_programs import fresh_programs
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(600)
"""A drill beside other tests takes minutes on a CPU that cannot run the kernels."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Stack]:
    """Its programs are no forks of the tests, but in a brief run: a drill looks whether their memory is flat.

    Those are that drills start beside it.
    """
    stack = drill_stack(Models.under(tmp_path_factory.mktemp("drills")))
    with nullcontext() if pytestconfig.getoption("brief") else fresh_programs():
        stack.__enter__()
    try:
        yield stack
    finally:
        stack.stop()


async def test_streams_finish_byte_identical_whatever_is_killed(stack: Stack) -> None:
    report = drill_crash.new_report(drill_crash.SHORT)
    await drill_crash.hold_on(stack, drill_crash.SHORT, report)
    assert report.broken(timed=False) == []


@pytest.mark.thorough
async def test_a_cancel_at_every_phase_ends_once_and_disturbs_nobody(stack: Stack) -> None:
    report = drill_cancel.new_report(drill_cancel.SHORT)
    await drill_cancel.hold_on(stack, drill_cancel.SHORT, report)
    assert report.broken(timed=False) == []


@pytest.mark.thorough
async def test_expiry_in_every_phase_names_its_hop(stack: Stack) -> None:
    report = drill_deadline.new_report()
    await drill_deadline.hold_on(stack, drill_deadline.SHORT, report)
    assert report.broken(timed=False) == []


@pytest.mark.thorough
async def test_under_overload_every_call_is_served_or_shed_with_a_hint(stack: Stack) -> None:
    report = drill_overload.new_report()
    await drill_overload.hold_on(stack, drill_overload.SHORT, report)
    assert report.broken(timed=False) == []


@pytest.mark.thorough
async def test_what_is_rolled_under_load_fails_no_request(stack: Stack) -> None:
    report = drill_roll.new_report()
    await drill_roll.hold_on(stack, drill_roll.SHORT, report)
    assert report.broken(timed=False) == []


@pytest.mark.thorough
async def test_what_is_scaled_under_load_fails_no_request(stack: Stack) -> None:
    report = drill_scale.new_report()
    await drill_scale.hold_on(stack, drill_scale.SHORT, report)
    assert report.broken(timed=False) == []


async def test_what_is_not_an_instances_to_say_is_refused(stack: Stack) -> None:
    report = drill_identity.new_report()
    await drill_identity.hold_on(stack, drill_identity.SHORT, report)
    assert report.broken(timed=False) == []


@pytest.mark.thorough
async def test_a_tenant_that_floods_the_stack_keeps_no_other_from_being_served(tmp_path: Path) -> None:
    """On a stack of its own: it has keys."""
    report = await drill_fairness.hold(Models.under(tmp_path), drill_fairness.SHORT)
    assert report.broken(timed=False) == []
