"""The configuration that the README prints runs a stack as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.client import connect, generate
from tests.support.client import request as prompt
from tests.support.data import REPOSITORY
from tests.support.stack import Stack

TIMEOUT_S = 60
SMALL = ("--corpus", "none", "--retriever", "0", "--draft", "none")


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    (example,) = re.findall(r"```toml\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "penstock.toml"
    file.write_text(example)
    return file


async def test_a_stack_with_the_readme_s_configuration_answers(printed: Path) -> None:
    with Stack(*SMALL, environ={"PENSTOCK_CONFIG": str(printed)}) as stack:
        async with connect(stack.grpc) as stub:
            answer = await generate(stub, prompt([5, 6, 7] * 20, max_tokens=8, ignore_eos=True))
    assert answer.outcome == "finished"
    assert len(answer.ids) == 8


def test_every_setting_of_the_readme_s_configuration_counts(printed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "config", "--json", *SMALL],
        cwd=printed.parent,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    shown = json.loads(done.stdout)
    lines = [number for number, line in enumerate(printed.read_text().splitlines(), 1) if " = " in line]
    sources = {setting["source"].split(" ")[0] for role in shown.values() for setting in role.values()}
    assert {f"penstock.toml:{number}" for number in lines} <= sources
