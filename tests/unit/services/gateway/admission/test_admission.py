"""Whether a request is taken: pure choices from what the fleet says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.admission.admission import (
    TTFT_DOUBT,
    check_pressure,
    check_ttft,
    check_wait,
    predict_ttft_s,
    sheds_class,
)
from services.gateway.admission.degradation import FALL_SHARE, RISE_AT
from services.gateway.admission.ticket import CLASSES
from shared.degradation import DegradationLevel
from shared.errors import DeadlineExpired, Overloaded
from shared.fairness.share import TenantShare
from shared.messages import Heartbeat, TenantQueue
from tests.integration.gateway_peers import heartbeat

HASHES = (b"a" * 16, b"b" * 16, b"c" * 16)
LOW, NORMAL = CLASSES[pb.PRIORITY_LOW], CLASSES[pb.PRIORITY_NORMAL]
CALM = FALL_SHARE * RISE_AT[DegradationLevel.LOW_PRIORITY]


@dataclass(frozen=True, slots=True)
class Prefill:
    heartbeat: Heartbeat
    cached: int

    def overlap(self, block_hashes: Sequence[bytes]) -> int:
        return min(self.cached, len(block_hashes))


def prefill(
    queued_tokens: int = 0,
    tokens_per_s: float = 1000.0,
    cached: int = 0,
    best: float | None = None,
    queues: tuple[TenantQueue, ...] = (),
    due: tuple[int, ...] = (),
) -> Prefill:
    beat = heartbeat(
        "prefill",
        "p",
        queued_tokens=queued_tokens,
        tenant_queues=queues,
        due_tokens=due,
        tokens_per_s=tokens_per_s,
        best_tokens_per_s=tokens_per_s if best is None else best,
    )
    return Prefill(beat, cached)


def test_the_predicted_first_token_waits_for_the_shortest_queue() -> None:
    assert predict_ttft_s([prefill(4000), prefill(9000)], 1000) == pytest.approx(5.0)


def test_an_idle_worker_needs_the_time_that_the_prompt_takes() -> None:
    assert predict_ttft_s([prefill(4000), prefill()], 1000) == pytest.approx(1.0)


def test_a_worker_that_was_slow_lately_is_judged_by_its_best_once_it_is_idle() -> None:
    check_ttft([prefill(tokens_per_s=10.0, best=1000.0)], 1.0, 1000)
    with pytest.raises(Overloaded):
        check_ttft([prefill(1000, tokens_per_s=10.0, best=1000.0)], 1.0, 1)


def test_what_a_worker_has_of_the_prompt_takes_no_time() -> None:
    assert predict_ttft_s([prefill(cached=3)], 1000, HASHES) == pytest.approx(0.952)
    assert predict_ttft_s([prefill(), prefill(10, cached=3)], 48, HASHES) == pytest.approx(0.01)


def test_an_unmeasured_worker_promises_nothing_and_so_does_an_empty_fleet() -> None:
    assert predict_ttft_s([prefill(9000, tokens_per_s=0.0), prefill(4000)], 1000) == 0.0
    assert predict_ttft_s([], 1000) == 0.0
    check_ttft([prefill(9000, tokens_per_s=0.0)], 0.1, 100_000)


def test_what_queues_keep_from_being_in_time_is_shed_with_a_hint() -> None:
    with pytest.raises(Overloaded) as caught:
        check_ttft([prefill(4000)], 3.0, 500)
    assert (caught.value.hop, caught.value.reason) == ("prefill", "ttft")
    assert caught.value.retry_after_ms == 1500


def test_what_no_worker_could_compute_in_time_is_told_so_and_not_to_retry() -> None:
    with pytest.raises(DeadlineExpired, match="shorter prompt") as caught:
        check_ttft([prefill(), prefill(tokens_per_s=500.0)], 3.0, 4000)
    assert (caught.value.hop, caught.value.retry_after_ms) == ("prefill", 0)


def test_one_worker_that_has_the_prefix_makes_it_possible() -> None:
    check_ttft([prefill(), prefill(cached=3)], 0.01, 58, HASHES)


@pytest.mark.parametrize("queued_tokens", [0, 500], ids=["idle", "queued"])
def test_a_prediction_is_believed_only_beyond_its_doubt(queued_tokens: int) -> None:
    tokens = round(1000 * TTFT_DOUBT) - queued_tokens
    check_ttft([prefill(queued_tokens)], 1.0, tokens)
    with pytest.raises((Overloaded, DeadlineExpired)):
        check_ttft([prefill(queued_tokens)], 1.0, tokens + 1)


def test_a_turn_that_comes_too_late_is_shed_with_the_rest_of_the_wait_as_hint() -> None:
    check_wait(3.0, 3.0)
    with pytest.raises(Overloaded) as caught:
        check_wait(5.0, 3.0)
    assert (caught.value.hop, caught.value.reason, caught.value.retry_after_ms) == ("decode", "wait", 2000)


def test_low_priority_is_shed_at_its_level_until_the_pressure_is_gone() -> None:
    with pytest.raises(Overloaded) as caught:
        check_pressure(CALM + 0.5, budget_s=4.0)
    assert caught.value.reason == "priority"
    assert 2000 <= caught.value.retry_after_ms <= 2001
    check_pressure(CALM - 0.01, budget_s=4.0)
    assert sheds_class(DegradationLevel.LOW_PRIORITY, LOW)
    assert sheds_class(DegradationLevel.NEW_REQUESTS, LOW)
    assert not sheds_class(DegradationLevel.LOW_PRIORITY, NORMAL)
    assert not sheds_class(DegradationLevel.RETRIEVAL, LOW)


QUEUES = (
    TenantQueue(TenantShare("heavy"), 8000),
    TenantQueue(TenantShare("double", weight=2), 3000),
    TenantQueue(TenantShare("mine"), 200),
)


@pytest.mark.parametrize(
    ("share", "ahead"),
    [
        (TenantShare("new"), 300 + 600 + 200),  # as much of each as it has itself, by weight
        (TenantShare("new", weight=3), 100 + 200 + 100),
        (TenantShare("mine"), 200 + 500 + 1000),
        (TenantShare("heavy"), 8000 + 3000 + 200),
    ],
)
def test_a_tenants_prompt_waits_for_its_own_and_for_a_part_of_the_others(
    share: TenantShare, ahead: int
) -> None:
    worker = prefill(11_200, queues=QUEUES)
    expected_s = (ahead + 300) / 1000.0
    assert predict_ttft_s([worker], 300, share=share) == pytest.approx(expected_s)
    check_ttft([worker], expected_s / TTFT_DOUBT + 0.01, 300, share=share)
    with pytest.raises(Overloaded):
        check_ttft([worker], expected_s / TTFT_DOUBT - 0.01, 300, share=share)


def test_what_no_tenant_is_named_for_counts_in_full() -> None:
    worker = prefill(11_200 + 500, queues=QUEUES)
    assert predict_ttft_s([worker], 0, share=TenantShare("new")) == pytest.approx(0.5)
    assert predict_ttft_s([prefill(500)], 0, share=TenantShare("new")) == pytest.approx(0.5)


def test_a_prompt_that_a_decode_worker_would_have_in_time_is_not_shed() -> None:
    assert predict_ttft_s([prefill(4000)], 500, local_s=2.0) == pytest.approx(2.0)
    assert predict_ttft_s([], 500, local_s=2.0) == 0.0
    check_ttft([prefill(4000)], 3.0, 500, local_s=3.0)
    with pytest.raises(Overloaded):
        check_ttft([prefill(4000)], 3.0, 500, local_s=3.0 * TTFT_DOUBT + 0.01)


def test_a_prompt_that_is_due_before_what_waits_is_not_shed_for_it() -> None:
    worker = prefill(4000, due=(0, 0, 0, 200, 4000))
    check_ttft([worker], 1.0, 500)
    with pytest.raises(Overloaded):
        check_ttft([worker], 2.0, 500)
    with pytest.raises(Overloaded):
        check_ttft([worker], 1.0, 500, in_turn=False)
