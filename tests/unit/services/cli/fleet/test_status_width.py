"""A table of instances is as wide as the terminal, and never narrower than can be read."""

from __future__ import annotations

import io
import sys
import time

import pytest

from services.cli.fleet.fleet_watch import Seen
from services.cli.fleet.status import LEAST_WIDTH, _shown
from services.cli.view.table import CUT
from tests.support.heartbeats import make_heartbeat


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        (1, LEAST_WIDTH),
        (LEAST_WIDTH, LEAST_WIDTH),
        (LEAST_WIDTH + 1, LEAST_WIDTH),
        (LEAST_WIDTH + 2, LEAST_WIDTH + 1),
    ],
)
def test_lines_are_cut_to_the_terminal_and_no_shorter_than_can_be_read(
    monkeypatch: pytest.MonkeyPatch, columns: int, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", Terminal())
    now_s = time.monotonic()
    beat = make_heartbeat(
        "decode", "decode-0", host="a-host-with-a-long-name", model="a-model", metrics="h:1"
    )
    lines = _shown([Seen(beat, 0, now_s, now_s)], as_json=False).splitlines()
    cut = [line for line in lines if line.endswith(CUT)]
    assert cut
    assert {len(line) for line in cut} == {width}
    assert max(map(len, lines)) == width


@pytest.mark.parametrize(
    ("models", "is_told"), [(("a-model", "a-model"), False), (("a-model", "b-model"), True)]
)
def test_the_model_of_each_instance_is_told_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, models: tuple[str, str], is_told: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", Terminal())
    now_s = time.monotonic()
    beats = [make_heartbeat("decode", f"decode-{n}", model=model) for n, model in enumerate(models)]
    head, *_ = _shown([Seen(beat, 0, now_s, now_s) for beat in beats], as_json=False).splitlines()
    assert ("model" in head.split()) is is_told
