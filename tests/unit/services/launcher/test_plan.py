"""The planner that `penstock up --plan` starts: a command that is there, with what it is to know."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.__main__ import MODULES
from services.cli.planner.plan_options import checked_plan_args
from services.launcher.options import parse_options
from services.launcher.plan import planner_spec


def test_it_is_the_command_that_scales_by_the_launcher(tmp_path: Path) -> None:
    spec = planner_spec(tmp_path, tmp_path / "planner.toml", environ={"A": "b"})
    flags, command = list(spec.command[1:4]), spec.command[4]
    args = checked_plan_args(spec.command[5:])
    assert (flags, command) == (["-P", "-m", "services.cli"], "plan")
    assert command in MODULES
    assert (args.act, args.settings, args.state_dir) == ("launcher", tmp_path / "planner.toml", tmp_path)
    assert spec.environ["A"] == "b"
    assert not spec.reports


def test_a_stack_has_none_unless_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "planner.toml"
    with pytest.raises(SystemExit):
        parse_options(["--plan", str(file)], {})
    assert "name one with a table [planner]" in capsys.readouterr().err
    file.write_text("[planner]")
    planned, alone = parse_options(["--plan", str(file)], {}), parse_options([], {})
    waits_s = [each.settings["gateway"]["admit_wait_s"].value for each in (planned, alone)]
    assert (planned.planner_settings, alone.planner_settings) == (file, None)
    assert waits_s == [60.0, 10.0]
