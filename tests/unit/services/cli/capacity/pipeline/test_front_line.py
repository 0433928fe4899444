"""A gateway is one server."""

from __future__ import annotations

from statistics import fmean

import pytest

from services.cli.capacity.pipeline.cores import OwnCores
from services.cli.capacity.pipeline.event_line import EventLine
from services.cli.capacity.pipeline.front_line import FrontLine
from services.cli.capacity.pipeline.played_load import steady_load
from services.cli.capacity.pipeline.played_request import PlayedRequest
from tests.unit.services.cli.capacity.deployments import load


def test_a_gateway_is_m_d_1() -> None:
    """Pollaczek and Khinchine: at rho = 0.6 requests wait 0.6 / 0.4 / 2 of their work in the mean."""
    line, passed = EventLine(), list[PlayedRequest]()
    front = FrontLine(line, OwnCores(line), 0.06, passed.append)
    requests = steady_load(load(10.0), 8000, 10.0)
    for request in requests:
        line.at(request.at_s, front.enter, request)
    line.play()
    assert passed == requests, "they pass in the order in which they came"
    assert fmean(request.front_wait_s for request in requests) == pytest.approx(0.06 * 0.75, rel=0.08)
