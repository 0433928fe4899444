"""How far a pull is, as a line."""

from __future__ import annotations

import io

from services.cli.local.pull_line import EVERY_S, PullLine
from tests.support.clock import FakeClock

MB = 1_000_000


def test_lines_that_stay_come_now_and_then_with_speed_and_time_left() -> None:
    err, clock = io.StringIO(), FakeClock()
    line = PullLine(err, redraws=False, clock=clock.monotonic_s)
    for done in (40, 50, 60, 70, 100):
        line.show("fetching", done * MB, 100 * MB)
        clock.advance(EVERY_S / 2)
    line.show("checking", 0, 100 * MB)
    line.end()
    assert err.getvalue().splitlines() == [
        "fetching 40.0 of 100.0 MB",
        "fetching 60.0 of 100.0 MB, 4.0 MB/s, 0:10 left",
        "fetching 100.0 of 100.0 MB, 6.0 MB/s",
        "checking 0.0 of 100.0 MB",
    ]


def test_on_a_terminal_one_line_is_drawn_anew_for_each_kind_of_work() -> None:
    err, clock = io.StringIO(), FakeClock()
    line = PullLine(err, redraws=True, clock=clock.monotonic_s)
    line.show("fetching", 0, 2 * MB)
    clock.advance(1.0)
    line.show("fetching", 2 * MB, 2 * MB)
    line.show("checking", 2 * MB, 2 * MB)
    line.end()
    first, second, end = err.getvalue().split("\n")
    assert first == "\rfetching 0.0 of 2.0 MB\x1b[K\rfetching 2.0 of 2.0 MB, 2.0 MB/s\x1b[K"
    assert (second, end) == ("\rchecking 2.0 of 2.0 MB\x1b[K", "")
