"""Jobs of the prefill worker: coming in, being taken, expiring; the cells they announce."""

from __future__ import annotations

import dataclasses

import pytest

from services.prefill.book import PrefillBook
from services.prefill.config import PrefillConfig
from services.prefill.job import PrefillJob, read_job
from services.prefill.kv_announcer import ready_blocks
from services.prefill.queue import PATIENCE_S
from shared.deadline import Deadline
from shared.errors import Cancelled, InvalidRequest, Overloaded, ProtocolError, StaleEpoch
from shared.fairness.share import TenantShare
from shared.messages import DUE_EDGES_S, MAX_REPORTED_TENANTS, Envelope, Prefill, TenantQueue, pack_ids
from shared.worker.job import JobPhase
from tests.support.clock import FakeClock
from tests.support.sampling import sampling


def job(request_id: str = "r", epoch: int = 1, tokens: int = 100, seconds: float = 60.0) -> PrefillJob:
    prefill = Prefill(pack_ids(range(tokens)), tokens, b"", sampling(max_tokens=16), "g", "d", "decode-0", 0)
    made = read_job(
        Envelope(request_id, epoch),
        prefill,
        Deadline.after(60.0),
        vocab_size=1000,
        max_model_len=512,
        now_s=0.0,
    )
    end = Deadline.after(seconds)
    return dataclasses.replace(made, deadline=end, first_token=end)


def book(max_queued: int = 8) -> PrefillBook:
    return PrefillBook(PrefillConfig(max_queued=max_queued), lambda _: True)


def test_jobs_are_taken_until_the_chunk_is_full() -> None:
    jobs = book()
    for request_id in "abc":
        jobs.add(job(request_id), 0.0)
    taken, lost = jobs.take_jobs(150)
    assert ([one.request_id for one in taken], lost) == (["a", "b"], [])
    assert len(jobs.queue) == 1


def test_no_job_is_taken_while_the_chunk_is_full_already() -> None:
    jobs = book()
    jobs.add(job(), 0.0)
    assert jobs.take_jobs(0) == ([], [])


def test_a_job_that_expired_in_the_queue_is_handed_out_with_its_error() -> None:
    jobs = book()
    jobs.add(job("late", seconds=-1.0), 0.0)
    jobs.add(job("good"), 0.0)
    taken, lost = jobs.take_jobs(50)
    assert [one.request_id for one in taken] == ["good"]
    assert [(one.request_id, error.code) for one, error in lost] == [("late", "expired")]
    assert "late/1" not in jobs.jobs


def test_a_refused_job_leaves_no_trace() -> None:
    jobs = book(max_queued=1)
    jobs.add(job("a"), 0.0)
    with pytest.raises(Overloaded):
        jobs.add(job("b"), 0.0)
    assert list(jobs.jobs) == ["a/1"]


def test_what_is_uncomputed_counts_until_the_first_token_but_for_what_is_on_its_way() -> None:
    jobs, one, other = book(), job("one"), job("other", tokens=48)
    jobs.add(one, 0.0)
    jobs.add(other, 0.0)
    other.coming_tokens = 32
    assert jobs.uncomputed_tokens == 100 + 16
    other.coming_tokens, other.cached_tokens = 0, 32
    jobs.take_jobs(50)  # about to join the engine
    assert jobs.uncomputed_tokens == 100 + 16
    one.phase, one.computed_tokens = JobPhase.COMPUTING, 60
    assert jobs.uncomputed_tokens == 40 + 16
    one.phase = JobPhase.TRANSFERRING
    assert jobs.uncomputed_tokens == 16


def test_removing_a_queued_job_frees_its_place_in_the_queue() -> None:
    jobs = book()
    jobs.add(job(), 0.0)
    jobs.remove("r/1")
    assert (len(jobs.queue), jobs.queue.queued_tokens, jobs.jobs) == (0, 0, {})


def test_tokens_still_to_compute_shrink_with_progress_and_with_the_cache() -> None:
    jobs = book()
    one = job()
    jobs.add(one, 0.0)
    jobs.take_jobs(1)
    one.phase = JobPhase.COMPUTING
    one.cached_tokens = 32
    assert jobs.computing_tokens == 68
    one.computed_tokens = 96
    assert jobs.computing_tokens == 4


def test_epochs_of_the_past_are_refused() -> None:
    jobs = book()
    jobs.tombstones.add("cancelled", 1, "cancelled")
    with pytest.raises(Cancelled):
        jobs.check_epoch("cancelled", 1, "g")
    jobs.add(job("r", epoch=2), 0.0)
    with pytest.raises(StaleEpoch):
        jobs.check_epoch("r", 1, "g")


def test_a_job_needs_a_deadline() -> None:
    prefill = Prefill(pack_ids([1]), 1, b"", sampling(max_tokens=16), "g", "d", "decode-0", 0)
    with pytest.raises(ProtocolError):
        read_job(Envelope("r", 1), prefill, None, vocab_size=10, max_model_len=64, now_s=0.0)


@pytest.mark.parametrize(
    ("start", "end", "blocks"),
    [(0, 20, (0, 1)), (20, 40, (1, 2)), (40, 50, (2, 4)), (0, 50, (0, 4)), (0, 15, (0, 0)), (32, 48, (2, 3))],
)
def test_blocks_are_final_when_full_or_when_the_prompt_is_computed(
    start: int, end: int, blocks: tuple[int, int]
) -> None:
    assert ready_blocks(start, end, 50) == blocks


def test_nobody_is_taken_behind_a_job_that_claims_room() -> None:
    jobs = book()
    jobs.add(job("big"), 0.0)
    (big,), _ = jobs.take_jobs(1)
    jobs.put_back(big)
    jobs.add(job("small", tokens=10), 0.0)
    both, _ = jobs.take_jobs(1000)
    assert [one.request_id for one in both] == ["small", "big"]
    for one in both:
        jobs.put_back(one)
    assert big.refused_s is not None
    jobs.queue._clock = FakeClock(big.refused_s + PATIENCE_S)
    alone, _ = jobs.take_jobs(1000)
    assert alone == [big]


def of(share: TenantShare, request_id: str, tokens: int = 100) -> PrefillJob:
    return dataclasses.replace(job(request_id, tokens=tokens), share=share)


HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


def test_prompts_of_two_tenants_are_taken_in_turn_by_what_they_take_to_compute() -> None:
    jobs = book()
    for number in range(4):
        jobs.add(of(HEAVY, f"heavy {number}", tokens=200), 0.0)
    for number in range(4):
        jobs.add(of(LIGHT, f"light {number}", tokens=50), 0.0)
    taken, _ = jobs.take_jobs(600)
    assert [one.request_id for one in taken] == [
        "heavy 0",
        "light 0",
        "light 1",
        "light 2",
        "light 3",
        "heavy 1",
    ]


def test_a_prompt_that_found_no_room_has_not_been_served() -> None:
    jobs = book()
    jobs.add(of(HEAVY, "heavy"), 0.0)
    jobs.add(of(LIGHT, "light"), 0.0)
    for _ in range(3):
        (first,), _ = jobs.take_jobs(1)
        jobs.put_back(first)
    (again,), _ = jobs.take_jobs(1)
    assert {first.request_id, again.request_id} == {"heavy", "light"}
    (other,), _ = jobs.take_jobs(1)
    assert other.request_id == first.request_id


def test_prompts_of_a_tenant_that_has_had_more_do_not_keep_anothers_waiting() -> None:
    jobs = book()
    for number in range(4):
        jobs.add(of(HEAVY, f"heavy {number}"), 0.0)
    for one in jobs.take_jobs(1000)[0]:
        one.phase = JobPhase.COMPUTING
    jobs.add(of(HEAVY, "heavy 4"), 0.0)
    assert jobs.prompts_ahead == 4
    jobs.add(of(LIGHT, "light"), 0.0)
    jobs._counters.charge(HEAVY, 1.0)  # a light one that comes is lifted to the heavy ones
    assert jobs.prompts_ahead == 0


def test_a_job_of_an_impossible_share_is_refused() -> None:
    prefill = Prefill(pack_ids([1]), 1, b"", sampling(max_tokens=16), "g", "d", "decode-0", 0)
    prefill = dataclasses.replace(prefill, share=TenantShare("t", weight=0))
    with pytest.raises(InvalidRequest, match="weight of a share is 0"):
        read_job(Envelope("r", 1), prefill, Deadline.after(9.0), vocab_size=10, max_model_len=64, now_s=0.0)


def test_a_worker_tells_of_the_tenants_with_the_longest_queues_where_there_are_several() -> None:
    jobs = book(max_queued=64)
    jobs.add(of(HEAVY, "one", tokens=30), 0.0)
    assert list(jobs.tenant_queues) == []
    jobs.add(of(HEAVY, "two", tokens=40), 0.0)
    for number in range(MAX_REPORTED_TENANTS):
        jobs.add(of(TenantShare(f"t{number}", weight=2), f"t{number}", tokens=10 + number), 0.0)
    queues = jobs.tenant_queues
    assert len(queues) == MAX_REPORTED_TENANTS
    assert queues[0] == TenantQueue(HEAVY, 70)
    assert queues[1] == TenantQueue(TenantShare(f"t{MAX_REPORTED_TENANTS - 1}", weight=2), 25)
    assert "t0" not in {queue.share.tenant for queue in queues}
    (first,), _ = jobs.take_jobs(1)
    first.phase = JobPhase.TRANSFERRING
    assert TenantQueue(HEAVY, 70) not in jobs.tenant_queues


def test_a_prompt_is_told_what_is_due_before_it() -> None:
    jobs = book()
    assert jobs.due_tokens == ()
    for one in (job("soon", seconds=1.0), job("late", tokens=200, seconds=50.0)):
        jobs.add(one, 0.0)
    assert jobs.due_tokens == (0, 0, 0, *[100] * 5)
    high = job("high", tokens=7, seconds=50.0)
    high.priority = 0
    jobs.add(high, 0.0)
    assert jobs.due_tokens == (7, 7, 7, *[107] * 5)


def test_the_step_that_runs_is_before_everybody_and_tenants_have_no_order_of_deadlines() -> None:
    jobs = book()
    jobs.add(job("one", tokens=200, seconds=50.0), 0.0)
    (one,), _ = jobs.take_jobs(1)
    one.phase = JobPhase.COMPUTING
    assert jobs.due_tokens == (200,) * len(DUE_EDGES_S)
    jobs.add(of(TenantShare("other"), "two", tokens=40), 0.0)
    assert list(jobs.due_tokens) == []
