"""A gateway that drains takes nothing in, but for the last calls of those who were connected before."""

from __future__ import annotations

import pytest

from services.gateway.admission.drain_gate import DrainGate
from shared.errors import Unavailable


def test_a_gateway_takes_in_what_it_is_asked() -> None:
    DrainGate().check()


def test_one_that_drains_sends_clients_to_another() -> None:
    gate = DrainGate()
    gate.closing = True
    with pytest.raises(Unavailable, match="this gateway is draining: use another one"):
        gate.check()


def test_one_that_has_left_its_ports_serves_who_still_asks() -> None:
    gate = DrainGate()
    gate.closing = gate.hears_last_calls = True
    gate.check()
