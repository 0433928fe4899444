"""Who is let in at the decode worker, and what must leave."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from services.decode.book import DecodeBook
from services.decode.job import DecodeJob, read_job
from services.decode.output import job_output
from shared.blocks.layer_groups import KvGroups
from shared.deadline import Deadline
from shared.engine.results import TokenOutput
from shared.errors import Cancelled, DeadlineExpired, InvalidRequest, Overloaded, ProtocolError, StaleEpoch
from shared.fairness.share import TenantShare
from shared.kv.chunk import MAX_EPOCH
from shared.messages import MAX_REPORTED_TENANTS, Envelope, Reserve, TenantJobs, pack_ids
from shared.sampling.thinking import ThinkingRule
from shared.worker.job import JobPhase
from shared.worker.marks import StepCost
from shared.worker.wire import JobOutput
from tests.support.clock import FakeClock
from tests.support.sampling import sampling


def soon() -> Deadline:
    return Deadline.after(60.0)


def job(
    request_id: str = "r", epoch: int = 1, tokens: int = 16, max_tokens: int = 16, expected_tokens: int = 0
) -> DecodeJob:
    how = sampling(max_tokens=max_tokens)
    reserve = Reserve(
        pack_ids(range(tokens)), tokens, b"", how, "g", "d", "p", "", 0, expected_tokens=expected_tokens
    )
    return read_job(Envelope(request_id, epoch), reserve, soon(), vocab_size=1000, max_model_len=512)


def book(max_jobs: int = 4, kv_blocks: int = 100) -> DecodeBook:
    return DecodeBook(max_jobs=max_jobs, kv_blocks=kv_blocks, is_alive=lambda _: True)


def test_a_job_is_counted_with_what_it_comes_to_next() -> None:
    jobs = book()
    jobs.add(job(tokens=17, max_tokens=400))  # 17 tokens and 128: 10 blocks
    assert jobs.free_blocks == 90


def test_a_job_that_gets_tokens_is_counted_as_larger() -> None:
    jobs, grown = book(), job(tokens=16, max_tokens=400)
    jobs.add(grown)
    grown.num_outputs = 1
    jobs.grow(grown)
    assert jobs.free_blocks == 90
    jobs.remove(grown.key)
    assert jobs.free_blocks == 100


def test_a_job_is_never_counted_as_larger_than_it_may_grow() -> None:
    jobs, grown = book(), job(tokens=17, max_tokens=40)
    jobs.add(grown)
    assert jobs.free_blocks == 96  # 57 tokens
    grown.num_outputs = 40
    jobs.grow(grown)
    assert jobs.free_blocks == 96


def test_a_job_that_is_expected_to_end_soon_has_room_until_there_and_then_as_any() -> None:
    jobs, grown = book(), job(tokens=16, max_tokens=400, expected_tokens=32)
    jobs.add(grown)
    assert jobs.free_blocks == 97  # 16 tokens and 32
    grown.num_outputs = 31
    jobs.grow(grown)
    assert jobs.free_blocks == 97
    grown.num_outputs = 32  # it goes on
    jobs.grow(grown)
    assert jobs.free_blocks == 89  # 48 tokens and 128


def test_a_job_that_is_expected_to_get_long_has_room_as_any() -> None:
    jobs = book()
    jobs.add(job(tokens=17, max_tokens=400, expected_tokens=300))
    assert jobs.free_blocks == 90
    with pytest.raises(ProtocolError, match="fewer tokens than none"):
        job(expected_tokens=-1)


@pytest.mark.parametrize("groups", [KvGroups(), KvGroups(full_attention=1, windowed=2, window_tokens=48)])
@pytest.mark.parametrize("expected_tokens", [0, 1, 40, 150, 400, 600])
@pytest.mark.parametrize("tokens", [1, 16, 17, 250])
def test_between_two_counts_of_a_job_that_grows_the_count_is_the_same(
    groups: KvGroups, expected_tokens: int, tokens: int
) -> None:
    grown = job(tokens=tokens, max_tokens=400, expected_tokens=expected_tokens)
    grown.phase = JobPhase.DECODING
    counts = 0
    for num_outputs in range(1, grown.longest - tokens + 1):
        grown.num_outputs = num_outputs
        needed = grown.needed_blocks(groups, 1)
        if num_outputs >= grown.recount_at:
            grown.counted_blocks, grown.recount_at = needed, grown.counted_until(groups)
            counts += 1
        assert grown.counted_blocks == needed
    assert groups.windowed or counts < num_outputs / 8


def test_the_context_limit_bounds_what_a_job_may_grow_to() -> None:
    assert job(max_tokens=10**6).longest == 512


def test_a_job_is_counted_with_a_block_in_each_group_of_layers() -> None:
    groups = KvGroups(1, 3, 100)
    jobs = DecodeBook(max_jobs=4, kv_blocks=2 * 65 - 1, is_alive=lambda _: True, groups=groups)
    jobs.add(job(tokens=500, max_tokens=1))
    assert jobs.free_blocks == 64  # 32 of layers that see everything, 3 times 11 of the others
    with pytest.raises(Overloaded):
        jobs.add(job("more", tokens=500, max_tokens=1))


def test_where_every_layer_has_a_window_a_job_is_counted_with_that_alone() -> None:
    jobs = DecodeBook(
        max_jobs=4, kv_blocks=100, is_alive=lambda _: True, groups=KvGroups(0, 1, 100), chunk_tokens=64
    )
    long = job(tokens=500, max_tokens=1)
    jobs.add(long)
    assert jobs.free_blocks == 100 - 11  # 100 and the rest of a tile
    jobs.add(job("short", tokens=16, max_tokens=16))
    assert jobs.free_blocks == 100 - 11 - 2
    local = dataclasses.replace(job("local", tokens=500, max_tokens=1), peer="")
    jobs.add(local)
    assert jobs.free_blocks == 100 - 11 - 2 - 15  # and what it computes in a step
    local.phase = JobPhase.DECODING
    jobs.grow(local)
    assert jobs.free_blocks == 100 - 11 - 2 - 11


def test_a_pool_that_has_run_over_has_nothing_free_and_takes_nobody() -> None:
    jobs, grown = book(kv_blocks=10), job(tokens=16, max_tokens=400)
    jobs.add(grown)
    grown.num_outputs = 100
    jobs.grow(grown)
    assert jobs.free_blocks == 0
    with pytest.raises(Overloaded, match="blocks"):
        jobs.add(job("b", max_tokens=1))


def test_jobs_are_refused_when_all_of_them_would_not_fit() -> None:
    jobs = book(kv_blocks=5)
    jobs.add(job("a"))
    jobs.add(job("b"))
    with pytest.raises(Overloaded, match="blocks") as refused:
        jobs.add(job("c"))
    assert refused.value.retry_after_ms > 0
    jobs.remove(job("a").key)
    jobs.add(job("c"))


def test_jobs_are_refused_when_all_slots_are_taken() -> None:
    jobs = book(max_jobs=1)
    jobs.add(job("a"))
    with pytest.raises(Overloaded, match="sequences"):
        jobs.add(job("b"))


HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


def of(share: TenantShare, request_id: str, *, guest: bool = False, tokens: int = 16) -> DecodeJob:
    return dataclasses.replace(job(request_id, tokens=tokens), share=share, guest=guest)


def full(max_guests: int, kv_blocks: int = 100) -> DecodeBook:
    """All four places are the heavy tenant's."""
    jobs = DecodeBook(max_jobs=4, max_guests=max_guests, kv_blocks=kv_blocks, is_alive=lambda _: True)
    for number in range(4):
        jobs.add(of(HEAVY, f"heavy-{number}"))
    return jobs


def test_a_guest_comes_in_beyond_the_places_up_to_the_limit() -> None:
    jobs = full(2)
    with pytest.raises(Overloaded, match="all 4 sequences"):
        jobs.add(of(LIGHT, "no guest"))
    jobs.add(of(LIGHT, "first", guest=True))
    jobs.add(of(LIGHT, "second", guest=True))
    with pytest.raises(Overloaded, match="all 4 sequences"):
        jobs.add(of(LIGHT, "third", guest=True))
    jobs.remove(job("first").key)
    with pytest.raises(Overloaded, match="all 4 sequences"):  # ordinary places are not free yet
        jobs.add(of(HEAVY, "more"))
    jobs.add(of(LIGHT, "third", guest=True))


def test_a_guest_needs_its_blocks_as_others_do() -> None:
    with pytest.raises(Overloaded, match="KV blocks"):
        full(2, kv_blocks=36).add(of(LIGHT, "large", guest=True, tokens=500))


def test_the_tenants_with_most_jobs_are_told_and_one_without_a_name_is_not() -> None:
    jobs = full(2)
    jobs.add(of(TenantShare("light", weight=3), "light", guest=True))
    jobs.add(of(TenantShare(), "open", guest=True))
    assert jobs.tenants == (TenantJobs(HEAVY, 4), TenantJobs(TenantShare("light", weight=3), 1))


def test_only_so_many_tenants_are_told() -> None:
    jobs = book(max_jobs=100)
    for number in range(MAX_REPORTED_TENANTS + 1):
        jobs.add(of(TenantShare(f"tenant-{number}"), f"a{number}"))
    jobs.add(of(TenantShare("tenant-3"), "b"))
    assert len(jobs.tenants) == MAX_REPORTED_TENANTS
    assert jobs.tenants[0] == TenantJobs(TenantShare("tenant-3"), 2)


def test_a_cancelled_epoch_cannot_come_in() -> None:
    jobs = book()
    jobs.tombstones.add("r", 2, "cancelled")
    with pytest.raises(Cancelled):
        jobs.check_epoch("r", 2, "g")
    jobs.check_epoch("r", 3, "g")


def test_an_epoch_below_the_one_held_is_stale() -> None:
    jobs = book()
    jobs.add(job("r", epoch=3))
    with pytest.raises(StaleEpoch):
        jobs.check_epoch("r", 2, "g")


def test_a_job_whose_gateway_was_never_heard_has_a_lease_all_the_same() -> None:
    jobs = DecodeBook(max_jobs=4, kv_blocks=100, is_alive=lambda _: False)
    jobs.add(job())
    assert jobs.abandoned() == []  # a lease begins when it is granted


def test_an_expired_job_is_found_until_it_is_stopping() -> None:
    jobs = book()
    late = dataclasses.replace(job(), deadline=Deadline.after(-1.0))
    jobs.add(late)
    assert jobs.expired_at_work() == [late]
    late.phase = JobPhase.STOPPING
    assert jobs.expired_at_work() == []


@pytest.mark.parametrize("envelope", [Envelope("", 1), Envelope("r", 0), Envelope("r", MAX_EPOCH + 1)])
def test_a_reservation_needs_a_request_and_an_epoch(envelope: Envelope) -> None:
    reserve = Reserve(pack_ids([1]), 1, b"", sampling(max_tokens=16), "g", "d", "p", "", 0)
    with pytest.raises(ProtocolError):
        read_job(envelope, reserve, soon(), vocab_size=1000, max_model_len=512)


def test_a_reservation_needs_a_deadline_that_has_not_passed() -> None:
    reserve = Reserve(pack_ids([1]), 1, b"", sampling(max_tokens=16), "g", "d", "p", "", 0)
    with pytest.raises(ProtocolError):
        read_job(Envelope("r", 1), reserve, None, vocab_size=1000, max_model_len=512)
    with pytest.raises(DeadlineExpired):
        read_job(Envelope("r", 1), reserve, Deadline.after(-1), vocab_size=1000, max_model_len=512)


def test_a_reservation_of_a_priority_that_does_not_exist_is_refused() -> None:
    reserve = Reserve(pack_ids([1]), 1, b"", sampling(max_tokens=16), "g", "d", "p", "", 3)
    with pytest.raises(InvalidRequest, match="priority 3"):
        read_job(Envelope("r", 1), reserve, soon(), vocab_size=1000, max_model_len=512)


def test_the_first_output_carries_the_way_here_and_the_last_the_drafts() -> None:
    live = job()
    live.transfer_us, live.queue_us = 5, 7
    live.phase, live.ready_s, cost = JobPhase.DECODING, 1.0, StepCost(10.0, "core")

    def told(output: TokenOutput) -> JobOutput:
        return job_output(live, output, 3.0, cost, lambda _: 4096)

    first = told(TokenOutput(live.key, 17, (1, 2), (), None, 1, 3))
    middle = told(TokenOutput(live.key, 19, (3, 9), (), None, 1, 2, looked_up=True))
    last = told(TokenOutput(live.key, 21, (4,), (), "stop", 0, 0))
    assert [(mark.phase, mark.duration_us) for mark in first.marks] == [
        ("kv.transfer", 5),
        ("decode.queue", 7),
    ]
    assert middle.marks == ()
    assert [(mark.phase, mark.duration_us) for mark in last.marks] == [
        ("count:draft_proposed", 5),
        ("count:draft_accepted", 2),
        ("count:ngram_proposed", 2),
        ("count:ngram_accepted", 1),
        ("count:decode_core_us", 80),
        ("count:kv_kib_s", 8),
    ]


def test_a_thinking_whose_deadline_has_passed_is_closed_once_it_is_decoded() -> None:
    clock = FakeClock()
    jobs = DecodeBook(max_jobs=4, kv_blocks=100, is_alive=lambda _: True, clock=clock)
    how = dataclasses.replace(sampling(), thinking=ThinkingRule(7, (7,), begun=True))
    reserve = Reserve(pack_ids(range(16)), 16, b"", how, "g", "d", "p", "", 0)
    read = partial(read_job, vocab_size=1000, max_model_len=512)
    ends = Deadline(clock.monotonic_s() + 1.0)
    thinking = read(Envelope("a", 1), reserve, soon(), thinking=ends)
    answering = read(
        Envelope("b", 1), dataclasses.replace(reserve, sampling=sampling()), soon(), thinking=ends
    )
    for each in (thinking, answering):
        jobs.add(each)
        each.phase = JobPhase.DECODING
    assert jobs.take_overdue_thinking() == []
    clock.advance(1.0)
    assert jobs.take_overdue_thinking() == [thinking]
    assert jobs.take_overdue_thinking() == []


def test_the_most_impatient_client_says_how_long_a_step_may_be() -> None:
    jobs = book()
    assert jobs.shortest_wait_s(0.04) == 0.04
    jobs.add(dataclasses.replace(job("patient"), inter_token_s=0.5))
    assert jobs.shortest_wait_s(0.04) == 0.5
    jobs.add(job("silent"))
    assert jobs.shortest_wait_s(0.04) == 0.04
    jobs.add(dataclasses.replace(job("impatient"), inter_token_s=0.02))
    assert jobs.shortest_wait_s(0.04) == 0.02
