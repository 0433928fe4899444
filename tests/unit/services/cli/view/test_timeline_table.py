from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.view.answer_output import terminal_width
from services.cli.view.timeline_table import LEAST_BAR_WIDTH, TIMES_WIDTH, timeline_table

TIMELINE = pb.Timeline(
    ttft_us=3000,
    total_us=10000,
    phases=[
        pb.Phase(name="decode", start_us=3000, duration_us=7000),
        pb.Phase(name="prefill", start_us=0, duration_us=3000),
    ],
)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_bars_take_the_width_that_is_there(width: int) -> None:
    rows = timeline_table(TIMELINE, width).splitlines()
    assert max(len(row) for row in rows) == width
    prefill, decode = rows[2:4]
    assert (prefill.split()[0], decode.split()[0]) == ("prefill", "decode")
    assert decode.count("█") == pytest.approx(0.7 * (width - 31), abs=1)


def test_where_no_bar_fits_there_is_none() -> None:
    least = len("prefill") + TIMES_WIDTH + 2 + LEAST_BAR_WIDTH
    assert "█" in timeline_table(TIMELINE, least)
    text = timeline_table(TIMELINE, least - 1)
    assert "█" not in text
    assert "first token 3.00 ms, total 10.00 ms" in text


def test_the_width_is_what_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    assert terminal_width() == 123


def test_another_region_is_told_behind_the_times() -> None:
    far = pb.Timeline()
    far.CopyFrom(TIMELINE)
    far.region = "us"
    assert timeline_table(far, 80).endswith("total 10.00 ms, computed in us\n")
    assert timeline_table(TIMELINE, 80).endswith("total 10.00 ms\n")
