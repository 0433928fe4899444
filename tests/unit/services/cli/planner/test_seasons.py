"""The file in which what is usual is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.planner.arrival_window import ArrivalWindow
from services.cli.planner.seasons import MAX_SEASON_BYTES, SLOT_S, Seasons, read_seasons, write_seasons
from shared.errors import InvalidRequest


def test_what_was_learnt_is_there_again(tmp_path: Path) -> None:
    file, seasons = tmp_path / "seasons.json", Seasons()
    assert read_seasons(file) == {}
    for slot in range(4):
        seasons.add(ArrivalWindow((slot + 1) * SLOT_S, SLOT_S, 900.0 * slot))
    write_seasons(file, {"large": seasons})
    (read,) = read_seasons(file).values()
    assert read.usual(2 * SLOT_S) == seasons.usual(2 * SLOT_S) == 1.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"m": 1}',
        '{"m": {"week": {}}}',
        '{"m": {"week": {"672": 1}, "day": {}}}',
        '{"m": {"week": {"0": -1}, "day": {}}}',
        '{"m": {"week": {"0": Infinity}, "day": {}}}',
        "[" * 10_000,
        " " * (MAX_SEASON_BYTES + 1),
    ],
    ids=range(9),
)
def test_what_is_no_such_file_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    file = tmp_path / "seasons.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match="remove it, and they are learnt anew"):
        read_seasons(file)
