"""A short set of the drills (`make drills` holds all): what must hold on any machine, however slow."""

from __future__ import annotations

import pytest

from tests.chaos import drill_cancel, drill_crash, drill_deadline, drill_identity, drill_overload
from tests.chaos.world import Models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models.under(tmp_path_factory.mktemp("drills"))


async def test_streams_finish_byte_identical_whatever_is_killed(models: Models) -> None:
    report = await drill_crash.hold(models, drill_crash.SHORT)
    assert report.broken(timed=False) == []


async def test_a_cancel_at_every_phase_ends_once_and_disturbs_nobody(models: Models) -> None:
    report = await drill_cancel.hold(models, drill_cancel.SHORT)
    assert report.broken(timed=False) == []


async def test_expiry_in_every_phase_names_its_hop(models: Models) -> None:
    report = await drill_deadline.hold(models, drill_deadline.SHORT)
    assert report.broken(timed=False) == []


async def test_under_overload_every_call_is_served_or_shed_with_a_hint(models: Models) -> None:
    report = await drill_overload.hold(models, drill_overload.SHORT)
    assert report.broken(timed=False) == []


async def test_what_is_not_an_instances_to_say_is_refused(models: Models) -> None:
    report = await drill_identity.hold(models, drill_identity.SHORT)
    assert report.broken(timed=False) == []
