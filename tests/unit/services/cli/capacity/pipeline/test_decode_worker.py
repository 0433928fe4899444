"""Streams in batches: their steps, their slots, their blocks."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from services.cli.capacity.pipeline.core_turns import CoreTurns
from services.cli.capacity.pipeline.cores import Cores, OwnCores
from services.cli.capacity.pipeline.decode_worker import DecodeWorker
from services.cli.capacity.pipeline.event_line import EventLine
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.profile import DecodeProfile
from services.cli.capacity.step_curve import StepCurve

DOUBLED = StepCurve(((1, 10.0), (2, 20.0)))
"""Steps as long as the batch: a processor that is shared."""


class Streams:
    """A worker, and the requests that have ended there."""

    def __init__(self, curve: StepCurve, slots: int = 64, *, stepwise: bool = False) -> None:
        self.line = EventLine()
        self.ended: list[PlayedRequest] = []
        cores: Cores = CoreTurns(self.line, 8) if stepwise else OwnCores(self.line)
        profile = DecodeProfile(curve, slots, kv_blocks=100, block_tokens=16)
        steps = curve.step_s(np.arange(slots + 1, dtype=np.float64)).tolist()
        self.worker = DecodeWorker(self.line, cores, profile, steps, 0.0, self.ended.append)

    def join(self, at_s: float, tokens: int) -> PlayedRequest:
        request = PlayedRequest(at_s, 10.0, 10.0, tokens + 1)
        request.first_s = at_s
        self.line.at(at_s, self.worker.join, request)
        return request


@pytest.mark.parametrize("stepwise", [False, True])
def test_who_joins_is_in_the_next_step(stepwise: bool) -> None:
    """A step of one takes 10 ms, of two 20."""
    streams = Streams(DOUBLED, stepwise=stepwise)
    first, second = streams.join(0.0, 4), streams.join(0.015, 2)
    streams.line.play()
    assert first.gaps_s().tolist() == pytest.approx([0.01, 0.01, 0.02, 0.02])
    assert second.gaps_s().tolist() == pytest.approx([0.025, 0.02])
    assert (first.end_s, second.end_s) == pytest.approx((0.06, 0.06))


def test_runs_of_steps_are_as_good_as_single_ones() -> None:
    random = Random(3)
    joins = [(random.uniform(0.0, 3.0), random.randrange(1, 30)) for _ in range(60)]
    found = []
    for stepwise in (False, True):
        streams = Streams(DOUBLED, stepwise=stepwise)
        requests = [streams.join(*each) for each in joins]
        streams.line.play()
        found.append(np.concatenate([request.gaps_s() for request in requests]))
    assert found[0].tolist() == pytest.approx(found[1].tolist(), abs=1e-6)


def test_slots_and_blocks_bound_who_has_room() -> None:
    """100 blocks of 16 tokens hold six requests of 256."""
    worker = Streams(DOUBLED, slots=3).worker
    small, large = PlayedRequest(0, 10.0, 10.0, 6), PlayedRequest(0, 200.0, 200.0, 56)
    for _ in range(3):
        assert worker.has_room(small)
        worker.reserve(small)
    assert not worker.has_room(small)
    worker = Streams(DOUBLED).worker
    for _ in range(6):
        worker.reserve(large)
    assert not worker.has_room(large)
    assert worker.has_room(small)
    worker.leave(large)
    assert worker.has_room(large)
    assert (worker.live, Streams(DOUBLED).worker.has_room(PlayedRequest(0, 1e6, 1e6, 1))) == (5, True)


def test_steps_as_long_as_the_batch_are_a_shared_processor() -> None:
    """M/G/1-PS at rho = 0.5: one is there in the mean, so that each takes twice as long as alone."""
    streams, random = Streams(DOUBLED, slots=64), Random(1)
    requests, at_s = [], 0.0
    for _ in range(4000):
        at_s += random.expovariate(1.0)
        requests.append(streams.join(at_s, max(1, round(random.expovariate(1 / 50)))))
    streams.line.play()
    alone_s = sum(request.tokens_behind_first for request in requests) * 0.01
    took_s = sum(request.end_s - request.first_s for request in requests)
    rho = alone_s / at_s
    assert took_s / alone_s == pytest.approx(1 / (1 - rho), rel=0.1)
