"""Rounds of a planner: pages of real gateways, what is done, and what is told of it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from services.cli.fleet.fleet_watch import Fleet
from services.cli.planner import plan_record
from services.cli.planner.change_budget import RoleChange
from services.cli.planner.fleet_planner import FleetPlanner, PlanRound, Targets
from services.cli.planner.fleet_sight import FleetSight
from services.cli.planner.plan_loop import PlanLoop, read_pages
from services.cli.planner.plan_options import checked_plan_args
from services.cli.planner.plan_record import AUDIT_NAME, PlanRecord
from services.cli.planner.plan_words import plan_json, plan_words
from services.cli.planner.planner_settings import PlannerSettings
from shared.deadline import ClockReading
from shared.errors import Unavailable
from shared.telemetry.metrics import RoleMetrics
from tests.unit.services.cli.capacity.deployments import PROFILE
from tests.unit.services.cli.planner.sights import beat, fleet, small

CALLED = b'penstock_requests_waiting{model="small"} 1\n'
CHANGES = (RoleChange("large", "decode", 1, 2, "so"),)


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"# TYPE penstock_requests_waiting gauge\n" + CALLED)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def metrics_address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Noted:
    """Notes what it is asked for, and refuses where `trouble` says why."""

    asked = False

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.targets: list[Targets] = []

    async def apply(self, sight: FleetSight, targets: Targets) -> str:
        del sight
        if self.trouble:
            raise Unavailable(self.trouble)
        self.targets.append(targets)
        return "noted"


def heard(address: str) -> Fleet:
    """A fleet whose second model rests, and is called."""
    found, now = Fleet(), ClockReading.now()
    gateway = beat("gateway", metrics=address, wanted_models=("small",), next_ms=600_000)
    for each in (gateway, *fleet()[1:], *small(awake=False)):
        found.observe(each, now, time.monotonic())
    return found


async def round_of(fleet_heard: Fleet, scaler: Noted, record: PlanRecord) -> PlanRound:
    planner = FleetPlanner(PlannerSettings(), PROFILE, 0.0, 2)
    return await PlanLoop(fleet_heard, planner, scaler, record).run(lambda _: True)


async def test_a_model_that_is_called_comes_back_and_that_is_told(
    tmp_path: Path, metrics_address: str
) -> None:
    noted = Noted()
    done = await round_of(heard(metrics_address), noted, PlanRecord(tmp_path / AUDIT_NAME))
    assert noted.targets[0]["small"] == {"prefill": 1, "decode": 1}
    lines = [json.loads(line) for line in (tmp_path / AUDIT_NAME).read_text().splitlines()]
    assert {(line["model"], line["role"], line["from"], line["to"], line["done"]) for line in lines} == {
        ("small", role, 0, 1, "noted") for role in ("prefill", "decode")
    }
    shown = generate_latest(RoleMetrics("planner")).decode()
    assert 'penstock_planned_instances{model="small",role="decode"} 1.0' in shown
    assert 'penstock_plan_changes_total{direction="out",model="small",role="decode"}' in shown
    words = plan_words(done, 31.0)
    assert "small  decode" in words
    assert "nothing is planned: large: no request has been answered yet" in words
    assert plan_json(done, 31.0)["models"]["small"]["roles"]["decode"]["planned"] == 1


async def test_what_cannot_be_done_is_told_and_asked_for_again(tmp_path: Path, metrics_address: str) -> None:
    record = PlanRecord(tmp_path / AUDIT_NAME)
    await round_of(heard(metrics_address), Noted("a roll goes on"), record)
    (line,) = (tmp_path / AUDIT_NAME).read_text().splitlines()
    assert "a roll goes on" in json.loads(line)["failed"]


async def test_a_gateway_whose_metrics_cannot_be_read_changes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    noted = Noted()
    done = await round_of(heard(address), noted, PlanRecord(None))
    assert (noted.targets, done.changes) == ([], ())
    assert "gateway-0: the metrics at" in done.troubles[0]
    assert await read_pages(()) == ({}, "")


def test_the_file_of_what_was_done_goes_on_in_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_record, "MAX_AUDIT_BYTES", 10)
    record = PlanRecord(tmp_path / AUDIT_NAME)
    for at_s in (1.0, 2.0):
        record.changed(at_s, CHANGES, "noted")
    assert json.loads((tmp_path / AUDIT_NAME).read_text())["unix_s"] == 2.0
    assert json.loads((tmp_path / f"{AUDIT_NAME}.1").read_text())["unix_s"] == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--act", "magic"], "invalid choice"),
        (["--compose-suffix", "small"], "MODEL=SUFFIX"),
        (["--compose-suffix", "small=-second"], "is for --act compose"),
        (["--metrics", "9100"], "is not HOST:PORT"),
        (["--watch", "3601"], "longer than 3600 s"),
    ],
)
def test_wrong_options_are_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checked_plan_args(options)
    assert said in capsys.readouterr().err
