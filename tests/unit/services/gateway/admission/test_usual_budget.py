"""How long clients usually allow for a first token."""

from __future__ import annotations

from services.gateway.admission.usual_budget import (
    BUDGET_AGE_S,
    BUDGETS_REMEMBERED,
    LEAST_BUDGET_S,
    MAX_TENANTS,
    UsualBudget,
)
from tests.support.clock import FakeClock


def test_only_the_last_budgets_of_a_tenant_count() -> None:
    usual = UsualBudget(FakeClock())
    usual.record("a", 1.0)
    for _ in range(BUDGETS_REMEMBERED):
        usual.record("a", 10.0)
    assert usual.usual_s() == 10.0


def test_a_tenant_has_one_voice_however_much_it_sends() -> None:
    usual = UsualBudget(FakeClock())
    for _ in range(500):
        usual.record("impatient", 1.0)
    for tenant in ("a", "b"):
        usual.record(tenant, 20.0)
    assert usual.usual_s() == 20.0


def test_of_two_the_more_patient_decides() -> None:
    usual = UsualBudget(FakeClock())
    usual.record("impatient", 1.0)
    usual.record("patient", 20.0)
    assert usual.usual_s() == 20.0


def test_a_budget_that_nobody_can_meet_counts_as_the_least() -> None:
    usual = UsualBudget(FakeClock())
    usual.record("a", 0.001)
    assert usual.usual_s() == LEAST_BUDGET_S


def test_a_tenant_that_is_silent_is_not_heard_any_more() -> None:
    clock = FakeClock()
    usual = UsualBudget(clock)
    usual.record("a", 2.0)
    clock.advance(BUDGET_AGE_S)
    assert usual.usual_s() == 2.0
    usual.record("b", 9.0)
    clock.advance(1.0)
    assert usual.usual_s() == 9.0


def test_tenants_are_bounded() -> None:
    usual = UsualBudget(FakeClock())
    usual.record("first", 50.0)
    for number in range(MAX_TENANTS):
        usual.record(str(number), 1.0)
    assert len(usual._tenants) == MAX_TENANTS
    assert "first" not in usual._tenants
