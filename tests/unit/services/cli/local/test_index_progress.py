from __future__ import annotations

import io

from services.cli.local.index_progress import EVERY_S, REDRAWN_EVERY_S, IndexProgressLine
from tests.support.clock import FakeClock


def test_lines_that_stay_come_now_and_then_and_at_the_end() -> None:
    err, clock = io.StringIO(), FakeClock()
    progress = IndexProgressLine(err, redraws=False, clock=clock.monotonic_s)
    for done in (10, 20, 30, 40):
        progress.show(done, 40)
        clock.advance(EVERY_S / 2)
    progress.end()
    assert err.getvalue().splitlines() == [
        "embedding 10/40 passages",
        "embedding 30/40 passages, 6 per second, 0:02 left",
        "embedding 40/40 passages",
    ]


def test_what_has_been_read_is_told_now_and_then_once_there_is_something() -> None:
    err, clock = io.StringIO(), FakeClock()
    progress = IndexProgressLine(err, redraws=False, clock=clock.monotonic_s)
    for documents in (0, 100, 200, 300, 400):
        progress.show_reading(documents)
        clock.advance(EVERY_S / 2)
    assert err.getvalue().splitlines() == ["read 100 documents", "read 300 documents"]


def test_on_a_terminal_what_has_been_read_grows_where_the_bar_will_be() -> None:
    err = io.StringIO()
    clock = FakeClock()
    progress = IndexProgressLine(err, redraws=True, clock=clock.monotonic_s)
    for documents in (1, 2, 3):
        progress.show_reading(documents)
        clock.advance(REDRAWN_EVERY_S * 0.75)
    progress.end()
    assert err.getvalue() == "\rread 1 documents\x1b[K\rread 3 documents\x1b[K\n"


def test_on_a_terminal_one_bar_grows_and_what_follows_has_its_own() -> None:
    err = io.StringIO()
    progress = IndexProgressLine(err, redraws=True, clock=FakeClock().monotonic_s)
    progress.show(1, 2)
    progress.show(2, 2)
    progress.end()
    progress.end()
    half, whole = "#" * 10 + "." * 10, "#" * 20
    assert err.getvalue() == (
        f"\rembedding [{half}] 1/2 passages\x1b[K\rembedding [{whole}] 2/2 passages\x1b[K\n"
    )
