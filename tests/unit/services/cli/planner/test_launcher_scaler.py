"""The scale that a launcher is told: instances by number, and those that are absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.planner.launcher_scaler import LauncherScaler, scale_of
from shared.errors import Unavailable
from shared.files.scale_file import MAX_INSTANCES, StackScale, read_scale
from tests.unit.services.cli.planner.sights import fleet, sight

MODELS = ("large", "small")


def roles(prefill: int, decode: int) -> dict[str, int]:
    return {"prefill": prefill, "decode": decode}


def test_of_one_model_there_are_so_many() -> None:
    scale = scale_of(("large",), {"large": roles(2, 3)}, None, 7)
    assert (scale.number, scale.counts, scale.absent) == (7, {"prefill": 2, "decode": 3}, ())


def test_of_several_each_has_the_next_number_in_turn_and_what_one_has_less_is_absent() -> None:
    scale = scale_of(MODELS, {"large": roles(1, 3), "small": roles(1, 1)}, None, 7)
    assert (scale.counts, scale.absent) == ({"prefill": 2, "decode": 5}, ("decode-3",))


def test_a_model_that_rests_is_absent() -> None:
    scale = scale_of(MODELS, {"large": roles(0, 0), "small": roles(1, 2)}, None, 7)
    assert (scale.counts, scale.absent) == (
        {"prefill": 2, "decode": 4},
        ("prefill-0", "decode-0", "decode-2"),
    )


def test_other_roles_stay_as_they_were_told_before() -> None:
    before = StackScale(1, {"gateway": 2, "decode": 4}, 1.0, ("decode-1", "tokenizer-1"))
    scale = scale_of(("large",), {"large": {"decode": 1}}, before, 7)
    assert (scale.counts, scale.absent) == ({"gateway": 2, "decode": 1}, ("tokenizer-1",))


@pytest.mark.parametrize("decode", [0, MAX_INSTANCES + 1])
def test_what_no_stack_has_is_refused(decode: int) -> None:
    with pytest.raises(Unavailable, match="a stack has 1 to"):
        scale_of(("large",), {"large": roles(1, decode)}, None, 7)


async def test_the_file_is_written_once_and_not_while_a_roll_goes_on(tmp_path: Path) -> None:
    stack = tmp_path / "stack.json"
    stack.write_text(json.dumps({"stand_in": ""}))
    scaler, seen = LauncherScaler(tmp_path), sight(fleet())
    assert "decode=2" in await scaler.apply(seen, {"large": roles(1, 2)})
    told = read_scale(tmp_path)
    assert "already" in await scaler.apply(seen, {"large": roles(1, 2)})
    assert read_scale(tmp_path) == told
    stack.write_text(json.dumps({"stand_in": "decode-2"}))
    with pytest.raises(Unavailable, match="a roll goes on"):
        await scaler.apply(seen, {"large": roles(1, 3)})
