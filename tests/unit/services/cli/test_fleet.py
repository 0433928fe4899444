from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from services.cli.fleet import fleet_watch
from services.cli.fleet.audit import Audit
from services.cli.fleet.fleet_watch import COLLECT_POLL_S, RATE_LASTS_S, Fleet
from services.cli.fleet.status import _shown
from services.cli.stack_file import STACK_NAME, stack_instances, stack_pids
from shared.deadline import ClockReading
from shared.messages import AdapterReport, AuditReport, BreakerReport, CorpusReport, Heartbeat, Held
from tests.support.heartbeats import heartbeat_with, make_heartbeat

BEAT = make_heartbeat(
    "decode",
    "decode-0",
    sent_unix_us=1000,
    host="host",
    pid=7,
    metrics="h:1",
    model="m",
    capacity=8,
    live=2,
    queued=1,
    queued_tokens=5,
    kv_blocks=100,
    kv_blocks_free=60,
    tokens_per_s=12.5,
)


def sent(unix_us: int, steady_us: int) -> Heartbeat:
    return dataclasses.replace(BEAT, sent_unix_us=unix_us, sent_steady_us=steady_us)


def test_the_skew_is_the_smallest_difference_heard() -> None:
    fleet = Fleet()
    fleet.observe(sent(1_000, 1_000), ClockReading(1_900, 1_900), now_s=0.0)
    fleet.observe(sent(2_000, 2_000), ClockReading(2_050, 2_050), now_s=0.2)
    fleet.observe(sent(3_000, 3_000), ClockReading(3_700, 3_700), now_s=0.4)
    (seen,) = fleet.all()
    assert seen.skew_us == 50


@pytest.mark.parametrize("step_us", [120_000_000, -120_000_000], ids=["ahead", "back"])
def test_a_time_of_day_that_is_set_is_seen_at_the_next_heartbeat(step_us: int) -> None:
    fleet = Fleet()
    fleet.observe(sent(1_000, 1_000), ClockReading(1_050, 1_050), now_s=0.0)
    fleet.observe(sent(2_000 + step_us, 2_000), ClockReading(2_700, 2_700), now_s=0.2)
    (seen,) = fleet.all()
    assert seen.skew_us == 50 - step_us


def test_a_restarted_instance_is_measured_anew_and_a_stopped_one_is_gone() -> None:
    fleet = Fleet()
    fleet.observe(sent(1_000, 1_000), ClockReading(1_001, 1_001), now_s=0.0)
    fleet.observe(
        dataclasses.replace(sent(1_000, 1_000), incarnation=2), ClockReading(1_400, 1_400), now_s=0.1
    )
    assert [seen.skew_us for seen in fleet.all()] == [400]
    fleet.observe(dataclasses.replace(BEAT, state="stopped"), ClockReading(1_500, 1_500), now_s=0.2)
    assert fleet.all() == []


@pytest.mark.parametrize("expected", [{"decode-0", "decode-1"}, {"decode-1"}])
async def test_who_is_expected_is_waited_for(expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_watch, "COLLECT_S", 0.0)
    monkeypatch.setattr(fleet_watch, "COLLECT_AT_MOST_S", 60.0)
    fleet = Fleet()
    fleet.observe(BEAT, ClockReading(0, 0), now_s=0.0)
    collecting = asyncio.create_task(fleet.collect(frozenset(expected)))
    async with asyncio.timeout(60):
        done, _ = await asyncio.wait({collecting}, timeout=4 * COLLECT_POLL_S)
        assert not done
        fleet.observe(dataclasses.replace(BEAT, instance="decode-1"), ClockReading(0, 0), now_s=0.0)
        await collecting


async def test_where_nobody_is_expected_somebody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_watch, "COLLECT_S", 0.0)
    monkeypatch.setattr(fleet_watch, "COLLECT_AT_MOST_S", 60.0)
    fleet = Fleet()
    collecting = asyncio.create_task(fleet.collect(frozenset()))
    async with asyncio.timeout(60):
        done, _ = await asyncio.wait({collecting}, timeout=4 * COLLECT_POLL_S)
        assert not done
        fleet.observe(BEAT, ClockReading(0, 0), now_s=0.0)
        await collecting


async def test_who_says_nothing_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_watch, "COLLECT_S", 0.0)
    monkeypatch.setattr(fleet_watch, "COLLECT_AT_MOST_S", 0.1)
    async with asyncio.timeout(60):
        await Fleet().collect(frozenset({"decode-0"}))


@pytest.mark.parametrize(
    ("instances", "known"),
    [
        ([{"id": "decode-0"}, {"id": "gateway-0"}], {"decode-0", "gateway-0"}),
        ([{"id": 7}, 7], set()),
        (7, set()),
    ],
)
def test_stack_json_says_who_is_expected(tmp_path: Path, instances: object, known: set[str]) -> None:
    (tmp_path / STACK_NAME).write_text(json.dumps({"instances": instances}))
    assert stack_instances(tmp_path, "--nats-url URL") == known


def test_stack_json_says_which_processes_its_instances_are(tmp_path: Path) -> None:
    rows = [{"id": "decode-0", "pid": 12}, {"id": "gateway-0", "pid": "13"}, {"id": 7, "pid": 14}, 7]
    (tmp_path / STACK_NAME).write_text(json.dumps({"instances": rows}))
    assert stack_pids(tmp_path, "--nats-url URL") == {"decode-0": 12}


def test_who_has_fallen_silent_is_left_out_of_a_watched_status() -> None:
    fleet = Fleet()
    fleet.observe(BEAT, ClockReading(0, 0), now_s=1.0)
    fleet.observe(dataclasses.replace(BEAT, instance="decode-1"), ClockReading(0, 0), now_s=5.0)
    assert [seen.beat.instance for seen in fleet.all(since_s=4.0)] == ["decode-1"]


def test_who_rests_is_shown_until_it_should_have_been_heard() -> None:
    fleet = Fleet()
    fleet.observe(dataclasses.replace(BEAT, next_ms=2000), ClockReading(0, 0), now_s=1.0)
    assert len(fleet.all(since_s=2.75)) == 1
    assert fleet.all(since_s=2.76) == []


def test_two_models_of_one_name_are_told_apart() -> None:
    fleet = Fleet()
    worker = dataclasses.replace(BEAT, weights_digest="a" * 32, tokenizer_digest="c" * 32)
    tokenizer = dataclasses.replace(worker, role="tokenizer", instance="tokenizer-0", weights_digest="")
    for beat in (
        worker,
        dataclasses.replace(worker, instance="decode-1", weights_digest="b" * 32),
        dataclasses.replace(worker, role="prefill", instance="prefill-0"),
        tokenizer,
    ):
        fleet.observe(beat, ClockReading(0, 0), now_s=0.0)
    assert _shown(fleet.all(), as_json=False).splitlines()[-3:] == [
        "model m, tokenizer cccccccc: tokenizer-0",
        "model m, weights aaaaaaaa, tokenizer cccccccc: decode-0 prefill-0",
        "model m, weights bbbbbbbb, tokenizer cccccccc: decode-1",
    ]
    described = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert {one["weights_digest"] for one in described} == {"a" * 32, "b" * 32, ""}


def test_status_shows_queues_kv_rates_and_marks_skew() -> None:
    fleet = Fleet()
    fleet.observe(BEAT, ClockReading(101_000, 101_000), now_s=0.0)
    head, row = _shown(fleet.all(), as_json=False).splitlines()
    assert head.split()[:6] == ["role", "instance", "state", "pid", "live", "queued"]
    assert row.split() == [
        "decode",
        "decode-0",
        "ready",
        "7",
        "2/8",
        "1",
        "40/100",
        "-",
        "12.5",
        "0",
        "-",
        "-",
        "-",
        "-",
        "m",
        "100.0",
        "!",
        "-",
    ]


def rate(fleet: Fleet) -> tuple[str, float]:
    """As the table shows it, and as the JSON tells it."""
    row = _shown(fleet.all(), as_json=False).splitlines()[1].split()
    (described,) = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    return row[8], described["tokens_per_s"]


def test_an_idle_instance_has_no_rate_whatever_its_heartbeat_repeats() -> None:
    fleet = Fleet()
    fleet.observe(dataclasses.replace(BEAT, live=0), ClockReading(1_000, 1_000), now_s=0.0)
    assert rate(fleet) == ("-", 0.0)


def test_the_rate_of_steps_that_have_ended_is_one_of_the_past() -> None:
    fleet = Fleet()
    beat = dataclasses.replace(BEAT, steps=7)
    for now_s in (0.0, RATE_LASTS_S):
        fleet.observe(beat, ClockReading(1_000, 1_000), now_s=now_s)
        assert rate(fleet) == ("12.5", 12.5)
    fleet.observe(beat, ClockReading(1_000, 1_000), now_s=RATE_LASTS_S + 0.25)
    assert rate(fleet) == ("-", 0.0)
    fleet.observe(dataclasses.replace(beat, steps=8), ClockReading(1_000, 1_000), now_s=RATE_LASTS_S + 0.5)
    assert rate(fleet) == ("12.5", 12.5)


def test_status_shows_where_every_gateway_takes_requests() -> None:
    fleet = Fleet()
    for number, http in enumerate(("h:8000", "")):
        gateway = heartbeat_with(
            BEAT, role="gateway", instance=f"gateway-{number}", grpc=f"h:5005{number}", http=http
        )
        fleet.observe(gateway, ClockReading(1_000, 1_000), now_s=0.0)
    assert _shown(fleet.all(), as_json=False).splitlines()[3:] == [
        "gateway-0 takes requests at grpc=h:50050 http=h:8000",
        "gateway-1 takes requests at grpc=h:50051",
    ]
    described = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert [(one["grpc"], one["http"]) for one in described] == [("h:50050", "h:8000"), ("h:50051", "")]


def test_status_shows_progress_and_who_stalls() -> None:
    fleet = Fleet()
    beat = dataclasses.replace(BEAT, state="stalled", steps=71, stalled_ms=6_250)
    fleet.observe(beat, ClockReading(1_000, 1_000), now_s=0.0)
    row = _shown(fleet.all(), as_json=False).splitlines()[1].split()
    assert (row[2], row[9], row[12]) == ("stalled", "71", "6.2")
    (described,) = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert (described["state"], described["steps"], described["stalled_ms"]) == ("stalled", 71, 6_250)


def test_status_shows_how_many_threads_an_engine_has_and_would_have_alone() -> None:
    fleet = Fleet()
    fleet.observe(heartbeat_with(BEAT, threads=1, most_threads=4), ClockReading(1_000, 1_000), now_s=0.0)
    assert _shown(fleet.all(), as_json=False).splitlines()[1].split()[10] == "1/4"
    (described,) = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert (described["threads"], described["most_threads"]) == (1, 4)


def test_status_shows_what_memory_a_pool_takes() -> None:
    fleet = Fleet()
    resident = heartbeat_with(BEAT, kv_blocks_resident=30, kv_block_bytes=368_640)
    fleet.observe(resident, ClockReading(1_000, 1_000), now_s=0.0)
    assert _shown(fleet.all(), as_json=False).splitlines()[1].split()[7] == "11"
    (described,) = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert described["kv_blocks_resident"] == 30


def test_status_shows_what_computes_in_an_engine() -> None:
    fleet = Fleet()
    fleet.observe(heartbeat_with(BEAT, backend="native"), ClockReading(1_000, 1_000), now_s=0.0)
    assert _shown(fleet.all(), as_json=False).splitlines()[1].split()[11] == "native"
    (described,) = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert described["backend"] == "native"


def test_status_shows_the_corpora_who_searches_them_and_what_is_wrong_with_them() -> None:
    whole, stale = CorpusReport("faq", 20, 3), CorpusReport("law", 7, 1, "the folder is gone")
    none = CorpusReport("new", 0, 0, "it has no document")
    fleet = Fleet()
    for beat in (
        heartbeat_with(BEAT, role="retriever", instance="retriever-0", corpora=(whole, stale, none)),
        heartbeat_with(BEAT, role="retriever", instance="retriever-1", corpora=(whole,)),
    ):
        fleet.observe(beat, ClockReading(1_000, 1_000), now_s=0.0)
    assert _shown(fleet.all(), as_json=False).splitlines()[-3:] == [
        "corpus faq, 20 passages, generation 3: retriever-0 retriever-1",
        "corpus law, 7 passages, generation 1 (the folder is gone): retriever-0",
        "corpus new, no index (it has no document): retriever-0",
    ]
    described = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert described[1]["corpora"] == [{"name": "faq", "passages": 20, "generation": 3, "trouble": ""}]


def test_status_shows_the_adapters_over_each_model_who_has_them_and_what_could_not_be_loaded() -> None:
    fleet = Fleet()
    law, chat = AdapterReport("law", 1, "a" * 32, 8), AdapterReport("chat", 1, "", 0, "it is damaged")
    for beat in (
        heartbeat_with(BEAT, adapters=(chat, law)),
        heartbeat_with(BEAT, role="prefill", instance="prefill-0", adapters=(law,)),
        heartbeat_with(BEAT, instance="decode-1", model="other", adapters=(law,)),
    ):
        fleet.observe(beat, ClockReading(1_000, 1_000), now_s=0.0)
    assert _shown(fleet.all(), as_json=False).splitlines()[-3:] == [
        "adapter m:chat, cannot be loaded (it is damaged): decode-0",
        "adapter m:law, digest aaaaaaaa, rank 8: decode-0 prefill-0",
        "adapter other:law, digest aaaaaaaa, rank 8: decode-1",
    ]
    described = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    found = {one["id"]: [each["name"] for each in one["adapters"]] for one in described}
    assert found == {"decode-0": ["chat", "law"], "decode-1": ["law"], "prefill-0": ["law"]}


def test_status_shows_what_a_gateway_leaves_out() -> None:
    fleet = Fleet()
    beat = heartbeat_with(BEAT, role="gateway", degradation=4)
    fleet.observe(beat, ClockReading(1_000, 1_000), now_s=0.0)
    head, row = _shown(fleet.all(), as_json=False).splitlines()
    assert "left out" in head
    assert "retrieval_depth" in row.split()
    (described,) = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert described["degradation"] == "retrieval_depth"


def test_status_shows_which_gateways_keep_away_from_an_instance() -> None:
    fleet = Fleet()
    fleet.observe(BEAT, ClockReading(1_000, 1_000), now_s=0.0)
    reports = (BreakerReport("decode", "decode-0", 1, "open"), BreakerReport("decode", "decode-0", 9, "open"))
    for number, breakers in enumerate((reports, reports[1:])):
        gateway = heartbeat_with(BEAT, role="gateway", instance=f"gateway-{number}", breakers=breakers)
        fleet.observe(gateway, ClockReading(1_000, 1_000), now_s=0.0)
    head, row, *gateways = _shown(fleet.all(), as_json=False).splitlines()
    assert head.split()[-2:] == ["breaker", "region"]
    assert row.split()[-3:] == ["open", "(gateway-0)", "-"]
    assert not any("open" in line for line in gateways)
    described, *_ = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert described["breakers"] == {"gateway-0": "open"}


def test_a_clock_a_second_ahead_is_marked_in_status_whatever_comes_late() -> None:
    fleet = Fleet()
    for number, transit_us in enumerate((400, 990_000)):
        sent_us = 5_000_000 * (number + 1)
        received_us = sent_us - 1_000_000 + transit_us
        fleet.observe(sent(sent_us, sent_us), ClockReading(received_us, received_us), now_s=float(number))
    _, row = _shown(fleet.all(), as_json=False).splitlines()
    assert row.split()[-3:] == ["-999.6", "!", "-"]
    (described,) = json.loads(_shown(fleet.all(), as_json=True))["instances"]
    assert (described["skew_us"], described["skewed"]) == (-999_600, True)


def report(role: str, *held: Held) -> AuditReport:
    return AuditReport(role, f"{role}-0", 1, held)


SESSION = Held("r", "session", 1, "decoding")
BLOCKS = Held("r", "kv_blocks", 4, "decoding")


def test_holding_is_right_only_while_a_request_is_live() -> None:
    assert Audit((report("gateway"), report("decode")), ()).clean
    assert Audit((report("gateway", SESSION), report("decode", BLOCKS)), ()).clean
    assert not Audit((report("gateway"), report("decode", BLOCKS)), ()).clean


def test_silence_is_never_clean() -> None:
    assert not Audit((report("gateway"),), (("decode-0", "no answer"),)).clean
    assert not Audit((), ()).clean
