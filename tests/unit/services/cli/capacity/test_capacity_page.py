"""The page of `penstock capacity`: its table of fields, its profile, and its commands, which are run.

With PENSTOCK_WRITE_PAGES=1 the table is written instead of compared.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from services.cli.capacity.capacity import main
from services.cli.capacity.profile_file import FIELDS, INT8_SPEED, read_profile
from tests.support.data import REPOSITORY
from tests.unit.services.cli.capacity.deployments import document

PAGE = REPOSITORY / "services" / "cli" / "capacity" / "README.md"
TEXT = PAGE.read_text("utf-8")
COMMANDS = re.findall(r"^\.venv/bin/penstock capacity (plan .*)$", TEXT, re.MULTILINE)
START, END = "<!-- fields of a profile -->\n", "<!-- end of fields -->"


def fields_table() -> str:
    rows = (
        f"| `{field.path}` | {field.least:g} | {field.most:g} | "
        f"{'' if field.default is None else f'{field.default:g}'} | {field.meaning} |\n"
        for field in (*FIELDS, INT8_SPEED)
    )
    return "".join(rows)


def test_the_page_has_the_fields_of_the_code() -> None:
    before, _, rest = TEXT.partition(START)
    table, _, behind = rest.partition(END)
    if os.environ.get("PENSTOCK_WRITE_PAGES") == "1":
        PAGE.write_text(f"{before}{START}{fields_table()}{END}{behind}", "utf-8")
    else:
        assert table == fields_table()


def test_the_page_s_profile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(TEXT.partition("```toml\n")[2].partition("```")[0])
    assert read_profile(path).decode.slots == 16


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_s_commands_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    toml = TEXT.partition("```toml\n")[2].partition("```")[0]
    Path("profile.toml").write_text(toml)
    Path("prices.toml").write_text("machine_per_hour = 0.5\ncurrency = 'EUR'\n")
    rows = [
        {"timestamp": 1000 * at, "input_length": 1200, "output_length": 100, "hash_ids": [0, 1, at + 2]}
        for at in range(5)
    ]
    Path("trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("load.json").write_text(json.dumps(measured_document()))
    assert main([*shlex.split(command), "--requests", "60"]) == 0
    said = capsys.readouterr().out
    assert "predict" in said
    if "--json" in command:
        assert json.loads(said)["kept"]
    if "--prices" in command:
        assert "EUR an hour" in said
    if "--measured" in command:
        assert re.search(r"^ttft_p50 +\d+ +250 +[-+]\d+%$", said, re.MULTILINE), said


def measured_document() -> dict[str, object]:
    """What `penstock bench serve --json` writes, as far as it is read."""
    figures = {"p50": {"value": 250.0}, "p99": {"value": None}}
    return {
        "options": {"rate": 2.0},
        "summary": {
            "latencies_ms": dict.fromkeys(("ttft", "itl", "tpot", "e2e"), figures),
            "rates": {"goodput": 2.0, "output_tokens_per_s": 120.0},
        },
    }


def test_the_document_of_tests_is_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document()))
    assert read_profile(path).name == "test"
