"""Shared cores: who is busy beside a prompt or a step, and how much longer either takes."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from services.cli.capacity.core_sharing import LEAST_FREE_CORES, CoreSharing
from services.cli.capacity.prediction import predict
from services.cli.capacity.profile import (
    DecodeProfile,
    FrontProfile,
    HostSize,
    InstanceCounts,
    PrefillProfile,
)
from services.cli.capacity.step_curve import StepCurve
from tests.unit.services.cli.capacity.deployments import PROFILE, load

REQUESTS = 20_000
SIMULATED_WITHIN = 0.12
"""The share by which simulated means may be off: states of stages are taken as independent."""


def sharing(
    cores: float = 2,
    small: float = 0.0,
    prompts: tuple[float, ...] = (0.6, 0.4),
    steps: tuple[float, ...] = (0.5, 0.5),
) -> CoreSharing:
    """Workers compute on two cores each."""
    return CoreSharing(cores, small, 2.0, 2.0, np.array(prompts), np.array(steps))


def test_a_step_takes_twice_as_long_while_a_prompt_is_computed() -> None:
    steps = sharing().of_steps(1)
    assert (list(steps.times), list(steps.shares)) == ([1.0, 2.0], [0.6, 0.4])
    assert steps.mean == pytest.approx(1.4)
    assert list(steps.at(np.array([0.1, 0.59, 0.61, 0.999]))) == [1.0, 1.0, 2.0, 2.0]


def test_a_prompt_meets_itself_and_steps() -> None:
    assert sharing().of_prompts().mean == pytest.approx(1.5)
    assert sharing(steps=(0.0, 1.0)).of_prompts().mean == pytest.approx(2.0)


def test_prompts_meet_each_other_more_often_than_a_look_at_any_time_does() -> None:
    """Of the time with prompts, two at once are a third; of prompts, two of four are in it."""
    met = sharing(prompts=(0.4, 0.4, 0.2), steps=(1.0, 0.0)).of_prompts()
    assert met.mean == pytest.approx(0.5 * 1 + 0.5 * 2)


def test_nobody_waits_while_there_are_cores_for_all() -> None:
    alone = sharing(cores=4)
    assert alone.of_prompts().mean == alone.of_steps(1).mean == 1.0


def test_small_work_leaves_fewer_cores_and_waits_only_for_itself() -> None:
    assert sharing(small=1.0).of_steps(1).times[0] == pytest.approx(2.0)
    assert sharing(small=1.0).small_stretch == 1.0
    full = sharing(small=3.0)
    assert full.small_stretch == pytest.approx(1.5)
    assert full.of_steps(1).times[0] == pytest.approx(2.0 / LEAST_FREE_CORES)


def test_means_of_all_states_are_those_of_each() -> None:
    found = sharing(prompts=(0.5, 0.3, 0.2), steps=(0.2, 0.3, 0.3, 0.2))
    assert list(found.mean_steps(3)) == pytest.approx([found.of_steps(busy).mean for busy in (1, 2, 3)])
    assert list(found.step_stretches(6, 3)) == pytest.approx(
        [*found.mean_steps(3), *[found.mean_steps(3)[-1]] * 3]
    )


def test_who_computes_nothing_yet_meets_itself_alone() -> None:
    assert sharing(prompts=(1.0, 0.0), steps=(1.0, 0.0)).of_prompts().mean == 1.0


def simulated_means_s(rate: float, prompt_s: float, answer_s: float, seed: int) -> tuple[float, float]:
    """Return times to the first token and to the end on one core that a line of prompts and the answers being
    decoded share evenly; steps take as long whatever their batch."""
    random = Random(seed)
    now, next_s = 0.0, random.expovariate(rate)
    line: list[float] = []  # when each came; the first is computed
    answers: list[list[float]] = []  # what is left of each, when it came
    left_s = prompt_s
    firsts: list[float] = []
    ends: list[float] = []
    while len(ends) < REQUESTS:
        speed = 0.5 if line and answers else 1.0
        to_prompt = left_s / speed if line else math.inf
        to_end = min(answers)[0] / speed if answers else math.inf
        step_s = min(next_s - now, to_prompt, to_end)
        now += step_s
        left_s -= step_s * speed if line else 0.0
        for answer in answers:
            answer[0] -= step_s * speed
        if step_s == to_prompt:
            came = line.pop(0)
            firsts.append(now - came)
            answers.append([answer_s, came])
            left_s = prompt_s
        elif step_s == to_end:
            done = min(answers)
            answers.remove(done)
            ends.append(now - done[1])
        else:
            line.append(now)
            next_s = now + random.expovariate(rate)
    return float(np.mean(firsts)), float(np.mean(ends))


@pytest.mark.parametrize("rate", [0.5, 1.5, 2.5])
def test_a_simulated_core_that_both_stages_share_has_such_means(rate: float) -> None:
    """Prompts of 0.1 s and answers of 50 steps of 10 ms: at 2.5 a second the core is busy nearly always."""
    profile = replace(
        PROFILE,
        host=HostSize(1),
        gateway=FrontProfile(0.0),
        prefill=PrefillProfile(1000.0),
        decode=DecodeProfile(StepCurve(((1, 10.0),)), slots=64, kv_blocks=4096),
    )
    predicted = predict(profile, load(rate, prompt=100, answer=51), InstanceCounts(), hosts=1).latencies
    first_s, end_s = simulated_means_s(rate, 0.1, 0.5, seed=1)
    assert predicted["ttft"].mean / 1e3 == pytest.approx(first_s, rel=SIMULATED_WITHIN)
    assert predicted["e2e"].mean / 1e3 == pytest.approx(end_s, rel=SIMULATED_WITHIN)
