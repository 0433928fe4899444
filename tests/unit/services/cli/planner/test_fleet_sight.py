"""A fleet as its heartbeats show it, and how long a start takes."""

from __future__ import annotations

from dataclasses import replace

from services.cli.fleet.fleet_watch import Seen
from services.cli.planner.cold_starts import ColdStarts
from services.cli.planner.fleet_sight import STALE_S, FleetSight, number_of
from tests.unit.services.cli.planner.sights import NOW_S, beat, fleet, sight, small


def test_models_come_in_the_order_of_their_instances_and_those_that_rest_have_a_tokenizer() -> None:
    found = sight(fleet(*small(awake=False)))
    assert found.models == ("large", "small")
    assert (found.count("large", "decode"), found.count("small", "decode")) == (1, 0)
    assert found.trouble == ""


def test_one_that_drains_is_no_more_and_one_that_loads_is_there() -> None:
    loading, draining = beat("decode", 2, state="loading"), beat("decode", 4, state="draining")
    assert sight(fleet(loading, draining)).count("large", "decode") == 2


def test_a_gateway_says_which_models_are_waited_for() -> None:
    beats = fleet(*small(awake=False))
    beats[0] = beat("gateway", metrics="127.0.0.1:1", wanted_models=("small", "strange"))
    assert sight(beats).wanted == {"small"}


def test_nothing_is_planned_by_what_is_not_known() -> None:
    old = [Seen(each, 0, NOW_S - STALE_S - 1, 0.0) for each in fleet()]
    fresh = [Seen(beat("gateway", 1, metrics="127.0.0.1:2"), 0, NOW_S, NOW_S)]
    assert "no gateway is heard" in FleetSight.of(old, NOW_S).trouble
    assert "gateway-0 was heard too long ago" in FleetSight.of([*old, *fresh], NOW_S).trouble
    assert "which model" in FleetSight.of(fresh, NOW_S).trouble


def test_the_number_of_an_instance_is_behind_its_role() -> None:
    assert [number_of(name) for name in ("decode-12", "decode-7f9c-x2b", "decode-99999")] == [12, None, None]


def test_a_start_is_measured_of_who_was_seen_as_it_loaded() -> None:
    starts = ColdStarts(30.0)
    loads = beat("decode", 1, state="loading", incarnation=1_000_000)
    ready = replace(loads, state="ready", sent_unix_us=3_500_000)
    starts.look([beat("decode", 0, sent_unix_us=9_000_000)])
    assert (starts.longest_s, starts.measured) == (30.0, False)
    starts.look([loads])
    starts.look([ready])
    starts.look([ready])
    assert (starts.longest_s, starts.measured) == (2.5, True)


def test_a_start_that_came_to_nothing_is_forgotten() -> None:
    starts = ColdStarts(30.0)
    loads = beat("decode", 1, state="loading", incarnation=1)
    starts.look([loads])
    starts.look([])
    starts.look([replace(loads, state="ready", sent_unix_us=9_000_000)])
    assert not starts.measured
