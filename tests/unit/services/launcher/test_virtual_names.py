"""A stack with virtual models: its file is checked before anything starts, and `penstock config` shows it."""

from __future__ import annotations

import json
from pathlib import Path

from services.launcher.options import parse_options
from tests.unit.services.launcher.test_config_report import config

TWO = ("--model", "small=org/small", "--model", "large=org/large")
RULES = """
[{name}]
fallback = ["large"]

[[{name}.rules]]
name = "long"
min_chars = 100
to = "large"

[[{name}.rules]]
to = {{ small = 95, large = 5 }}
"""


def problems(folder: Path, rules: str, *more: str) -> str:
    (folder / "models.toml").write_text(rules)
    environ = {"PENSTOCK_GATEWAY_VIRTUAL_MODELS": str(folder / "models.toml")}
    environ |= {"PENSTOCK_GATEWAY_DEFAULT_MODEL": more[0]} if more else {}
    return "\n".join(parse_options([*TWO], environ).problems)


def test_a_right_file_is_no_problem_and_its_name_may_be_the_default_model(tmp_path: Path) -> None:
    assert problems(tmp_path, RULES.format(name="auto"), "auto") == ""
    assert "default_model is 'other'" in problems(tmp_path, RULES.format(name="auto"), "other")


def test_a_file_that_cannot_be_used_or_hides_a_model_is_a_problem(tmp_path: Path) -> None:
    assert "has 0 virtual names" in problems(tmp_path, "")
    assert "[small] has the name of a model that is served" in problems(
        tmp_path, RULES.format(name="small").replace("small =", "large-2 =")
    )


def test_config_shows_virtual_names_with_their_rules(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(RULES.format(name="auto"))
    text = '[gateway]\nvirtual_models = "models.toml"\n'
    line = "long → large, 2 → small 95 | large 5; falls back to large"
    assert f"auto{' ' * 40}"[:20] in (shown := config(tmp_path, "--alone", text=text).stdout)
    assert line in shown
    told = json.loads(config(tmp_path, "--alone", "--json", text=text).stdout)
    assert told["gateway"]["virtual_models"]["names"] == {"auto": line}
    text = '[gateway]\nvirtual_models = "none.toml"\n'
    assert "cannot be read" in config(tmp_path, "--alone", "--check", text=text).stderr
