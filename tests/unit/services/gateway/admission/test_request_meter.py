"""A request is counted once for its tenant, and costs nothing where it had nothing."""

from __future__ import annotations

from services.gateway.admission.request_meter import RequestMeter
from services.gateway.admission.running_answers import RunningAnswer, RunningAnswers
from services.gateway.admission.taken_slots import TakenSlots
from services.gateway.fleet.model_identity import ModelIdentity
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.share import TenantShare
from shared.fairness.token_cost import step_cost
from tests.support.clock import FakeClock


def contended() -> ServiceCounters:
    counters = ServiceCounters()
    for tenant in ("mine", "other"):
        counters.join(tenant)
    return counters


def had(counters: ServiceCounters) -> float:
    return counters.standing("mine")[0]


def test_the_prompt_counts_at_the_first_turn_and_once() -> None:
    counters = contended()
    meter = RequestMeter(counters, TakenSlots(), TenantShare("mine"))
    meter.take_turn(100)
    meter.take_turn(140)
    assert had(counters) == 100.0


def test_what_was_cached_costs_nothing() -> None:
    counters = contended()
    meter = RequestMeter(counters, TakenSlots(), TenantShare("mine"))
    meter.take_turn(100)
    meter.record_cached(96)
    assert had(counters) == 4.0
    meter.record_cached(500)
    assert had(counters) == 0.0


def test_tokens_count_with_the_kv_that_is_held_and_by_weight() -> None:
    counters = contended()
    meter = RequestMeter(counters, TakenSlots(), TenantShare("mine", weight=2))
    meter.take_turn(100)
    meter.draw(1)
    meter.draw(3)
    assert had(counters) == (100.0 + step_cost(1, 101) + step_cost(3, 104)) / 2


def test_who_never_came_to_a_token_has_had_nothing_and_who_did_keeps_its_bill() -> None:
    counters = contended()
    in_vain, served = (RequestMeter(counters, TakenSlots(), TenantShare("mine")) for _ in range(2))
    in_vain.take_turn(100)
    in_vain.end()
    in_vain.end()
    assert had(counters) == 0.0
    served.take_turn(100)
    served.draw(1)
    served.end()
    assert had(counters) == 100.0 + step_cost(1, 101)


def test_what_was_counted_in_an_earlier_period_is_not_given_back_in_a_later_one() -> None:
    counters = contended()
    meter = RequestMeter(counters, TakenSlots(), TenantShare("mine"))
    meter.take_turn(100)
    for tenant in ("mine", "other"):
        counters.leave(tenant)
    for tenant in ("mine", "other"):
        counters.join(tenant)
    meter.end()
    assert had(counters) == 0.0


def test_nothing_is_counted_where_a_tenant_is_alone() -> None:
    counters = ServiceCounters()
    counters.join("mine")
    meter = RequestMeter(counters, TakenSlots(), TenantShare("mine"))
    meter.draw(1000)
    assert had(counters) == 0.0


def test_an_answer_runs_from_its_slot_to_its_end_and_another_takes_its_place() -> None:
    clock = FakeClock()
    running = RunningAnswers(lambda *_: True, clock)
    meter = RequestMeter(contended(), TakenSlots(), TenantShare("mine"), running)
    first, second = (RunningAnswer(ModelIdentity("m"), None, 100) for _ in range(2))
    meter.expect_answer(first)
    assert len(running) == 0
    meter.take_turn(10)
    meter.draw(3)
    meter.draw(4)
    assert (len(running), first.drawn, first.first_s) == (1, 7, clock.monotonic_s())
    meter.expect_answer(second)  # by another model
    assert len(running) == 0
    meter.take_turn(10)
    meter.draw(2)
    assert (len(running), first.drawn, second.drawn) == (1, 7, 2)
    meter.end()
    meter.end()
    assert len(running) == 0
