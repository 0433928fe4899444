"""What tenants have had lately fades as others are served, and is bounded in its number."""

from __future__ import annotations

import math

import pytest

from shared.fairness.recent_service import FADES_IN, RecentService


def test_who_was_served_longest_ago_has_had_least_lately_of_those_served_alike() -> None:
    recent = RecentService(8)
    for tenant in "abc":
        recent.add(tenant, 10.0)
    assert recent.of("a") < recent.of("b") < recent.of("c")
    assert recent.of("nobody") == 0.0


def test_who_has_most_of_what_is_served_has_had_most_whoever_was_last() -> None:
    recent = RecentService(8)
    for _ in range(100):
        for tenant in ("heavy", "heavy", "heavy", "light"):
            recent.add(tenant, 24.0)
    assert recent.of("heavy") > 2.5 * recent.of("light")


def test_it_fades_with_what_others_are_served() -> None:
    recent = RecentService(8)
    recent.add("a", 5.0)
    recent.add("b", FADES_IN)
    assert recent.of("a") == pytest.approx(5.0 / math.e)
    recent.add("b", 1000 * FADES_IN)
    assert recent.of("a") == 0.0


def test_beyond_the_most_the_one_served_longest_ago_is_forgotten() -> None:
    recent = RecentService(2)
    for tenant in ("a", "b", "a", "c"):
        recent.add(tenant, 1.0)
    assert len(recent) == 2
    assert recent.of("b") == 0.0
    assert recent.of("a") > 0.0
