"""The table [planner]: every field, its bounds, and sentences for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.planner.planner_settings import (
    MAX_SETTINGS_BYTES,
    PlannerSettings,
    RoleLimits,
    read_planner_settings,
)
from shared.errors import InvalidRequest
from shared.files.scale_file import MAX_INSTANCES


def read(tmp_path: Path, text: str) -> PlannerSettings:
    file = tmp_path / "planner.toml"
    file.write_text(text)
    return read_planner_settings(file)


def test_an_empty_table_has_every_default(tmp_path: Path) -> None:
    assert read(tmp_path, "[planner]") == PlannerSettings()


def test_every_field_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '[planner]\nslo = ["ttft_p99<600ms"]\nprefill = "2-4"\ndecode = "1-64"\nspares = 0\n'
        "scale_in_after_s = 60\nrest_after_s = 900\nchanges_per_minute = 3\ncold_start_s = 12.5\nhosts = 1\n"
        'profile = "profile.toml"',
    )
    assert [level.text for level in found.levels] == ["ttft_p99<600ms"]
    assert found.limits == {"prefill": RoleLimits(2, 4), "decode": RoleLimits(1, MAX_INSTANCES)}
    assert (found.spares, found.hosts, found.changes_per_minute) == (0, 1, 3)
    assert (found.scale_in_after_s, found.rest_after_s, found.cold_start_s) == (60.0, 900.0, 12.5)
    assert found.profile == tmp_path / "profile.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "no table [planner]"),
        ("[planner]\nspare = 1", "there is no planner.spare"),
        ("[planner]\nspares = 9", "a whole number from 0 to 8"),
        ("[planner]\nspares = true", "a whole number"),
        ("[planner]\nrest_after_s = 86401", "a number of seconds to 86400"),
        ("[planner]\nchanges_per_minute = 0", "from 1 to 1000"),
        ('[planner]\ndecode = "0-4"', "the fewest and the most"),
        (f'[planner]\ndecode = "1-{MAX_INSTANCES + 1}"', "the fewest and the most"),
        ('[planner]\ndecode = "4-2"', "the fewest and the most"),
        ('[planner]\nslo = ["errors<1%"]', "cannot be predicted"),
        ('[planner]\nslo = ["fast"]', "is no objective"),
        (f"[planner]\nslo = {['ttft_p99<1s'] * 17}", "up to 16 objectives"),
        ("[planner]\nprofile = 1", "the name of a file"),
        ("[planner", "is no TOML"),
        ("#" * (MAX_SETTINGS_BYTES + 1), "is larger than"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(tmp_path, text)
    assert said in refused.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_planner_settings(tmp_path / "none.toml")
