"""The very arrivals of a measured load, made again from what its file says."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from services.cli.bench.plan.arrivals import seeded_arrivals
from services.cli.capacity import measured_comparison
from services.cli.capacity.capacity import main
from services.cli.capacity.measured_comparison import MeasuredFile
from tests.unit.services.cli.capacity.deployments import profile_file
from tests.unit.services.cli.capacity.test_capacity_page import measured_document

OPEN = {
    "rate": 4.0,
    "variation": 1.0,
    "duration": 10.0,
    "seed": 0,
    "requests": None,
    "source": None,
    "warmup": 0.0,
}


def measured(folder: Path, **options: Any) -> Path:
    path = folder / "load.json"
    path.write_text(json.dumps({**measured_document(), "options": {**OPEN, **options}}))
    return path


def test_an_open_load_s_arrivals_are_made_again(tmp_path: Path) -> None:
    times_s = MeasuredFile.read(measured(tmp_path)).times_s
    assert times_s == tuple(islice(seeded_arrivals(4.0, 1.0, 0), len(times_s)))
    assert times_s[-1] < 10 <= next(islice(seeded_arrivals(4.0, 1.0, 0), len(times_s), None))
    assert MeasuredFile.read(measured(tmp_path, requests=3)).times_s == times_s[:3]
    assert MeasuredFile.read(measured(tmp_path, seed=1)).times_s != times_s


@pytest.mark.parametrize(
    "options",
    [
        {"source": [["synthetic", ""]]},
        {"warmup": 1.0},
        {"variation": 1e9},
        {"variation": "1"},
        {"requests": 0},
        {"duration": None},
        {"rate": 10**400},
        {"rate": -1},
    ],
)
def test_where_others_came_than_these_nothing_is_said(tmp_path: Path, options: dict[str, Any]) -> None:
    assert MeasuredFile.read(measured(tmp_path, **options)).times_s == ()


def test_arrivals_are_made_up_to_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(MeasuredFile.read(measured(tmp_path)).times_s)
    monkeypatch.setattr(measured_comparison, "MAX_TIMES", count)
    assert len(MeasuredFile.read(measured(tmp_path)).times_s) == count
    monkeypatch.setattr(measured_comparison, "MAX_TIMES", count - 1)
    assert MeasuredFile.read(measured(tmp_path)).times_s == ()


def test_the_very_load_is_played_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than one prefill worker does: a load that goes on would have endless figures."""
    words = (
        "--profile",
        str(profile_file(tmp_path)),
        "--rate",
        "20",
        "--instances",
        "decode=4",
        "--requests",
        "50",
    )
    main(["plan", *words, "--measured", str(measured(tmp_path, rate=20.0, duration=2.0)), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["prediction"]["trouble"]
    assert [note for note in answer["notes"] if "its very arrivals" in note]
    rows = {row["figure"]: row for row in answer["measured"]}
    assert 0 < rows["ttft_p50"]["predicted"] < 20_000
    assert rows["output_tokens_per_s"]["predicted"] > 0
