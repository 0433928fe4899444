"""The command of Compose, told or run."""

from __future__ import annotations

import sys

import pytest

from services.cli.planner.compose_scaler import ComposeScaler
from shared.errors import Unavailable
from tests.unit.services.cli.planner.sights import fleet, sight, small

TARGETS = {"large": {"prefill": 1, "decode": 3}, "small": {"prefill": 0, "decode": 0}}
COMMAND = (
    "docker compose -f compose/compose.yaml up --detach --no-deps --no-recreate --scale prefill=1 "
    "--scale decode=3 --scale prefill-second=0 --scale decode-second=0 prefill decode prefill-second "
    "decode-second"
)


async def test_the_command_is_told_once() -> None:
    told: list[str] = []
    scaler = ComposeScaler(["compose/compose.yaml"], {"small": "-second"}, run=False, tell=told.append)
    seen = sight(fleet(*small()))
    assert await scaler.apply(seen, TARGETS) == f"told: {COMMAND}"
    await scaler.apply(seen, TARGETS)
    assert told == [COMMAND]


def test_services_without_a_name_are_asked_for() -> None:
    with pytest.raises(Unavailable, match="--compose-suffix small=-second"):
        ComposeScaler([], {}, run=False).command(("large", "small"), TARGETS)


async def test_a_command_that_fails_says_its_last_line() -> None:
    fails = (sys.executable, "-S", "-c", "print('a'); print('no such service'); raise SystemExit(3)")
    scaler = ComposeScaler([], {}, run=True, program=fails)
    with pytest.raises(Unavailable, match="ended with 3: no such service"):
        await scaler.apply(sight(fleet()), {"large": {"decode": 2}})


async def test_a_command_that_is_not_there_is_named() -> None:
    scaler = ComposeScaler([], {}, run=True, program=("no-such-docker",))
    with pytest.raises(Unavailable, match="no-such-docker cannot be run"):
        await scaler.apply(sight(fleet()), {"large": {"decode": 2}})
