"""`penstock roll` and a real launcher, whose services are tiny and say truly how they are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.launched import Up, launcher_environ, service_commands

BROKEN = "broken"


@contextmanager
def started(folder: Path) -> Iterator[Up]:
    """A gateway and two decode workers; while there is a file of that name none of these starts."""
    commands = service_commands(folder)
    decode = " ".join(commands["decode"])
    commands["decode"] = ["/bin/sh", "-c", f"test -e {folder / BROKEN} && exit 2; exec {decode}"]
    up = Up(folder, commands, "--grpc-port", "0", "--http-port", "0", "--decode", "2")
    try:
        asyncio.run(up.until_ready())
        yield up
    finally:
        up.process.terminate()
        up.wait()
        up.close()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with started(tmp_path_factory.mktemp("roll")) as running:
        yield running


async def roll(up: Up, *argv: str, environ: Mapping[str, str] | None = None) -> tuple[int, list[str], str]:
    return await command(up, "roll", *argv, environ=environ)


async def command(
    up: Up, name: str, *argv: str, environ: Mapping[str, str] | None = None
) -> tuple[int, list[str], str]:
    """Return the exit code of `penstock NAME`, the lines that it prints, and its errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", name, *argv, "--state-dir", str(up.state_dir)),
        cwd=REPOSITORY,
        env={**os.environ, **launcher_environ(up.state_dir.parent), **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ended = await ended_program(process)
    return ended.code, ended.out.splitlines(), ended.err


def pids(up: Up) -> dict[str, int]:
    return {row["id"]: row["pid"] for row in up.stack()["instances"]}


async def test_every_instance_runs_anew_and_one_more_of_its_role_stands_in_meanwhile(up: Up) -> None:
    before = pids(up)
    code, out, err = await roll(up)
    after = pids(up)
    assert (code, err) == (0, "")
    assert before.keys() == after.keys() == {"gateway-0", "decode-0", "decode-1"}
    assert not before.items() & after.items()
    assert [line for line in out if "stands in" in line] == [
        "decode-2 stands in for decode-0",
        "gateway-1 stands in for gateway-0",
    ]
    assert out[-1].startswith("3 instances run anew after ")


async def test_what_does_not_start_leaves_all_as_it_is_and_the_next_roll_goes_on(up: Up) -> None:
    before, broken = pids(up), up.state_dir.parent / BROKEN
    broken.touch()
    code, out, _ = await roll(up, "decode")
    broken.unlink()
    assert code == 3
    assert out[-1].startswith("decode-2 refused its configuration")
    assert out[-1].endswith("decode-0 and all that have not been rolled go on as they are")
    assert pids(up) == before
    code, out, _ = await roll(up, "decode")
    assert code == 0
    assert out[0] == "going on with 2 instances of the roll that was not finished"
    assert [name for name, pid in pids(up).items() if before[name] == pid] == ["gateway-0"]


async def test_what_cannot_be_rolled_is_told_and_left_alone(up: Up) -> None:
    before = pids(up)
    code, _, err = await roll(up, environ={"PENSTOCK_NATS_URL": up.stack()["nats"]})
    assert code == 1
    assert "whatever keeps the processes" in err
    code, _, err = await roll(up, "nobody")
    assert (code, "there is no role nobody" in err) == (2, True)
    assert pids(up) == before


@pytest.mark.thorough
def test_gateways_with_ports_of_their_own_are_rolled_when_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GATEWAY_SHARE_PORTS", "false")
    with started(tmp_path) as up:
        before = pids(up)
        code, _, err = asyncio.run(roll(up, "gateway"))
        assert (code, "pass --yes" in err) == (1, True)
        assert pids(up) == before
        code, out, err = asyncio.run(roll(up, "gateway", "--yes"))
        assert (code, err, [line for line in out if "stands in" in line]) == (0, "", [])
        assert [name for name, pid in pids(up).items() if before[name] != pid] == ["gateway-0"]
