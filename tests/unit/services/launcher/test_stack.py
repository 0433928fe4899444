"""How a stack describes its instances and ends them, with real, tiny child processes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.launcher import stack as stack_module
from services.launcher.options import parse_options
from services.launcher.processes.instance import Instance, InstanceSpec
from services.launcher.processes.log_lines import LineWriter
from services.launcher.stack import Stack
from services.launcher.stack_log import StackLog
from services.launcher.state import RunningInstance
from shared.bus import Delivery
from shared.messages import AdapterReport, Envelope
from tests.support.heartbeats import make_heartbeat
from tests.support.wait import until


class Playing:
    """A stack without a bus: the test starts its instances and speaks for them."""

    def __init__(self, state_dir: Path) -> None:
        options = parse_options(["--state-dir", str(state_dir), "--draft", "none"], {})
        self.stack = Stack(options, StackLog(LineWriter(io.BytesIO())), lambda _: None)

    async def start(self, role: str, script: str) -> Instance:
        command = ("/bin/sh", "-c", script)
        child = self.stack._launch(InstanceSpec(role, f"{role}-0", command, {"PATH": os.environ["PATH"]}))
        self.stack.instances.append(child)
        self.stack._beats.follow(role, f"{role}-0")
        await until(lambda: "here" in child.last_lines)
        return child

    def beat(self, child: Instance, metrics: str, state: str = "ready") -> None:
        """As the process that runs now would send it."""
        role, name = child.spec.role, child.spec.instance
        beat = make_heartbeat(
            role,
            name,
            incarnation=child.pid,
            state=state,
            host="h",
            pid=child.pid,
            metrics=metrics,
            capacity=1,
        )
        self.stack._beats.on_beat(Delivery(Envelope(), beat))

    def described(self) -> RunningInstance:
        (described,) = self.stack._description().instances
        return described


@pytest.fixture
async def playing(tmp_path: Path) -> AsyncIterator[Playing]:
    playing = Playing(tmp_path)
    yield playing
    await playing.stack._end()


async def test_a_restarted_process_is_not_shown_with_the_metrics_address_of_the_last_one(
    playing: Playing,
) -> None:
    child = await playing.start("decode", "echo here; exec sleep 600")
    playing.beat(child, "127.0.0.1:1")
    assert child.process is not None
    first = child.pid
    assert playing.described() == RunningInstance("decode", "decode-0", first, "127.0.0.1:1")
    child.ready_pid = first
    child.process.send_signal(signal.SIGKILL)
    await until(lambda: child.pid != first)
    assert playing.described() == RunningInstance("decode", "decode-0", child.pid, "")
    playing.beat(child, "127.0.0.1:2")
    assert playing.described().metrics == "127.0.0.1:2"


async def test_who_is_heard_of_is_not_probed_and_who_stalls_by_its_own_word_is(playing: Playing) -> None:
    child = await playing.start("decode", "echo here; exec sleep 600")
    playing.beat(child, "127.0.0.1:1")
    assert playing.stack._addresses() == []
    playing.stack._beats._heard_s["decode", "decode-0"] -= 0.5  # its next one is late by as much as may be
    assert playing.stack._addresses() == [(child, "127.0.0.1:1")]
    playing.beat(child, "127.0.0.1:1", state="stalled")
    assert playing.stack._addresses() == [(child, "127.0.0.1:1")]


@pytest.mark.parametrize("role", ["gateway", "decode"])
async def test_an_instance_that_ignores_sigterm_is_killed_within_the_time_of_the_stop(
    playing: Playing, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    for name in ("STOP_TIMEOUT_S", "GATEWAY_TIMEOUT_S", "LEAST_TIMEOUT_S"):
        monkeypatch.setattr(stack_module, name, 0.2)
    child = await playing.start(role, "trap '' TERM; echo here; while :; do sleep 0.05; done")
    async with asyncio.timeout(stack_module.KILL_TIMEOUT_S):
        await playing.stack._end()
    assert child.process is not None
    assert child.process.returncode == -9


async def test_an_adapter_that_a_worker_has_not_loaded_is_said_with_the_reason(
    playing: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await playing.start("decode", "echo here; exec sleep 600")
    broken, fine = AdapterReport("sql", 1, "", 0, "no such file"), AdapterReport("law", 1, "d", 8)
    said: list[str] = []
    monkeypatch.setattr(playing.stack, "_say", said.append)
    beat = make_heartbeat("decode", "decode-0", incarnation=child.pid, pid=child.pid, adapters=(broken, fine))
    playing.stack._beats.on_beat(Delivery(Envelope(), beat))
    assert playing.stack._check_ready(child, set())
    assert said[1:] == ["decode-0 has not loaded the adapter sql: no such file"]
