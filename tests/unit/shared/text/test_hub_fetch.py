"""How far the fetch of a model is, from a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.text.hub_fetch import EVERY_S, FetchReports
from tests.support.data import REPOSITORY
from tests.support.hub import running_hub

TIMEOUT_S = 60


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3_000_000))
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


FETCH = """
import json
from shared.text.hub_fetch import fetch_model

told = []
folder = fetch_model("org/tiny", lambda done, total: told.append([done, total]))
print(json.dumps({"files": sorted(file.name for file in folder.iterdir()), "told": told}))
"""


def test_a_fetch_is_told_and_what_is_here_is_not(repository: Path, tmp_path: Path) -> None:
    def fetched() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", FETCH],
            cwd=REPOSITORY,
            env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        return dict(json.loads(done.stdout))

    with running_hub("org/tiny", repository) as hub:
        first, second = fetched(), fetched()
    assert first["files"] == second["files"] == ["config.json", "model.safetensors"]
    assert first["told"][0][0] == 0
    assert second["told"] == []


def test_reports_come_at_once_and_then_now_and_then() -> None:
    told: list[tuple[int, int]] = []
    now_s = 0.0
    reports = FetchReports(lambda done, total: told.append((done, total)), clock=lambda: now_s)
    reports.note(0, 0)
    assert told == []
    reports.note(0, 100)
    reports.note(10, 100)
    assert told == [(0, 100)]
    now_s = EVERY_S
    reports.note(20, 100)
    reports.note(30, 100)
    assert told == [(0, 100), (20, 100)]
