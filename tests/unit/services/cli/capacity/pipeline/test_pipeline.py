"""Requests through all instances: where each goes, and lines with known answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from services.cli.capacity.pipeline.pipeline import Pipeline
from services.cli.capacity.pipeline.played_load import load_at, steady_load
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.profile import (
    DecodeProfile,
    DeploymentProfile,
    FrontProfile,
    HostSize,
    InstanceCounts,
    PrefillProfile,
)
from services.cli.capacity.step_curve import StepCurve
from tests.unit.services.cli.capacity.deployments import PROFILE, load

FLAT = StepCurve(((1, 100.0),))
DECODES = DeploymentProfile(
    "decodes",
    HostSize(2),
    FrontProfile(0.0),
    PrefillProfile(1e9),
    DecodeProfile(FLAT, slots=2, kv_blocks=4096),
)
"""Prompts take no time, steps are equal: slots are servers."""


def figures(requests: list[PlayedRequest]) -> list[tuple[float, float, float]]:
    return [(each.ttft_s, each.e2e_s, float(each.gaps_s().max())) for each in requests]


def test_a_request_alone_takes_what_its_parts_take() -> None:
    (request,) = requests = load_at(load(1.0), [5.0])
    Pipeline(PROFILE, InstanceCounts()).play(requests)
    prompt_s = 0.004 + 256 / 1500
    assert request.ttft_s == pytest.approx(0.003 + 0.002 + prompt_s + 0.0001)
    assert request.gaps_s().tolist() == pytest.approx([0.003 + 0.012, *[0.012] * 62])
    assert request.e2e_s == pytest.approx(request.ttft_s + 0.003 + 63 * 0.012)


@pytest.mark.parametrize("hosts", [None, 1])
def test_the_same_load_has_the_same_answer(hosts: int | None) -> None:
    answers = []
    for _ in range(2):
        requests = steady_load(load(4.0), 60, 4.0)
        Pipeline(PROFILE, InstanceCounts(1, 2, 2), hosts, 256.0).play(requests)
        answers.append(figures(requests))
    assert answers[0] == answers[1]


def test_a_machine_with_cores_for_all_is_as_good_as_own_cores() -> None:
    """Small work takes some of so many cores, and nobody misses them."""
    counts, answers = InstanceCounts(2, 2, 2), []
    own = replace(PROFILE, gateway=replace(PROFILE.gateway, token_cpu_ms=0.0))
    for profile, hosts in ((own, None), (replace(own, host=HostSize(64)), 1)):
        requests = steady_load(load(3.0), 80, 3.0)
        Pipeline(profile, counts, hosts).play(requests)
        answers.append([figure for each in figures(requests) for figure in each])
    assert answers[0] == pytest.approx(answers[1], abs=1e-6)


def test_slots_of_equal_steps_are_m_m_2() -> None:
    """Erlang's C(2, 1) is 1/3 at rho = 0.5, and the mean wait 1/3 of a service."""
    random = Random(7)
    requests, at_s = [], 0.0
    for _ in range(6000):
        at_s += random.expovariate(0.1)
        requests.append(PlayedRequest(at_s, 1.0, 1.0, 1 + max(1, round(random.expovariate(1 / 100)))))
    Pipeline(DECODES, InstanceCounts()).play(requests)
    served_s = fmean(request.end_s - request.first_s for request in requests)
    assert served_s == pytest.approx(10.0, rel=0.05)
    assert fmean(request.slot_wait_s > 0 for request in requests) == pytest.approx(1 / 3, abs=0.03)
    assert fmean(request.slot_wait_s for request in requests) == pytest.approx(10 / 3, rel=0.15)


def test_decode_workers_fill_evenly_and_prompts_go_where_least_is_to_compute() -> None:
    """Nine come at once: each of three decode workers has three of them, and so has each prefill worker."""
    requests = load_at(load(1.0), [0.0] * 9)
    pipeline = Pipeline(PROFILE, InstanceCounts(3, 3, 3))
    pipeline.play(requests)
    assert sorted(Counter(id(request.steps) for request in requests).values()) == [3, 3, 3]
    prompt_s = 0.004 + 256 / 1500
    waits = Counter(round(request.line_wait_s / prompt_s) for request in requests)
    assert waits == {0: 3, 1: 3, 2: 3}


def test_small_work_beside_requests_takes_cores_from_prompts() -> None:
    """A prompt takes both cores; of what a request costs beside it, a third is before its first token."""
    profile = replace(
        PROFILE,
        gateway=FrontProfile(0.0),
        prefill=PrefillProfile(1000.0, cores=2.0),
        host=HostSize(2, request_cpu_ms=60.0),
    )
    (request,) = requests = load_at(load(1.0, prompt=100, answer=1), [0.0])
    pipeline = Pipeline(profile, InstanceCounts(), 1)
    pipeline.play(requests)
    assert request.ttft_s == pytest.approx(0.1 + 0.02)
    assert pipeline.stretches["prefill"] == pytest.approx(1.2)
    heavy = replace(profile, host=HostSize(2, kv_token_cpu_ms=1.0))
    (request,) = requests = load_at(load(1.0, prompt=100, answer=2), [0.0])
    Pipeline(heavy, InstanceCounts(), 1).play(requests)
    assert request.ttft_s == pytest.approx(0.1)
    assert request.gaps_s()[0] == pytest.approx(0.003 + 0.012)


def test_instances_are_dealt_to_machines() -> None:
    """Two decode workers with two threads each share one machine of two cores, and do not share two."""
    profile = replace(PROFILE, decode=replace(PROFILE.decode, cores=2.0))
    stretches = []
    for hosts in (1, 2):
        pipeline = Pipeline(profile, InstanceCounts(1, 1, 2), hosts)
        pipeline.play(load_at(load(1.0, prompt=10), [0.0, 0.0]))
        stretches.append(pipeline.stretches["decode"])
    assert stretches[0] == pytest.approx(2.0, rel=0.05)
    assert stretches[1] == pytest.approx(1.0, rel=0.05)
