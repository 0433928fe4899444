"""Gateways that share their ports and are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from services.launcher.watch.stopped_watch import STOPPED, STOPPED_LOOKS, StoppedWatch, process_state
from tests.unit.services.launcher.watch.test_prober import Probed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class States:
    """Return the state that the kernel says of each process."""

    def __init__(self) -> None:
        self.of: dict[int, str] = {}

    def __call__(self, pid: int) -> str:
        return self.of.get(pid, "S")


def test_a_gateway_that_stays_stopped_is_ended_once() -> None:
    stopped, running, states = Probed(), Probed(), States()
    running.life = 2
    watch = StoppedWatch(lambda: (stopped, running), states)
    states.of[1] = STOPPED
    for _ in range(STOPPED_LOOKS - 1):
        watch.look()
    assert stopped.killed == []
    for _ in range(3):
        watch.look()
    assert stopped.killed == ["it was stopped, and new connections wait for it"]
    assert running.killed == []


def test_one_that_goes_on_in_time_or_is_another_process_by_then_is_left_alone() -> None:
    gateway, states = Probed(), States()
    watch = StoppedWatch(lambda: (gateway,), states)
    for _ in range(3):
        states.of[1] = STOPPED
        for _ in range(STOPPED_LOOKS - 1):
            watch.look()
        states.of[1] = "R"
        watch.look()
    states.of |= {1: STOPPED, 2: STOPPED}
    for _ in range(STOPPED_LOOKS - 1):
        watch.look()
    gateway.life = 2
    watch.look()
    assert gateway.killed == []


def test_where_nobody_shares_ports_the_next_look_may_wait() -> None:
    gateways: list[Probed] = []
    watch = StoppedWatch(lambda: gateways, States())
    assert not watch.look()
    gateways.append(Probed())
    assert watch.look()


def test_the_kernel_says_that_a_process_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process_state(process.pid) not in ("", STOPPED)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert process_state(process.pid) == STOPPED
        process.kill()
        process.wait()
        assert process_state(process.pid) == ""
