from __future__ import annotations

import io

from services.cli.local.index_progress import EVERY_S, REDRAWN_EVERY_S, IndexProgressLine
from shared.retrieval.index.reading_progress import ReadSoFar
from tests.support.clock import FakeClock


def so_far(files: int) -> ReadSoFar:
    """Of four files with one document and 1 MB each."""
    return ReadSoFar(files, files, 4, files * 1_000_000, 4_000_000)


def test_lines_that_stay_come_now_and_then_and_at_the_end() -> None:
    err, clock = io.StringIO(), FakeClock()
    progress = IndexProgressLine(err, redraws=False, clock=clock.monotonic_s)
    for done in (10, 20, 30, 40):
        progress.show(done, 40)
        clock.advance(EVERY_S / 2)
    progress.end()
    assert err.getvalue().splitlines() == [
        "embedding 10/40 passages",
        "embedding 30/40 passages, 6 passages/s, 0:02 left",
        "embedding 40/40 passages",
    ]


def test_what_has_been_read_is_told_now_and_then_once_there_is_something() -> None:
    err, clock = io.StringIO(), FakeClock()
    progress = IndexProgressLine(err, redraws=False, clock=clock.monotonic_s)
    for files in (0, 1, 2, 3, 4):
        progress.show_reading(so_far(files))
        clock.advance(EVERY_S / 2)
    assert err.getvalue().splitlines() == [
        "reading 0/4 files",
        "reading 2/4 files, 0.4 MB/s, 0:05 left",
        "reading 4/4 files",
    ]


def test_files_that_are_as_they_were_are_not_told_of() -> None:
    err = io.StringIO()
    progress = IndexProgressLine(err, redraws=True, clock=FakeClock().monotonic_s)
    progress.show_reading(ReadSoFar(7, 0, 0, 0, 0))
    progress.end()
    assert err.getvalue() == ""


def test_of_a_file_with_many_documents_these_are_told() -> None:
    err = io.StringIO()
    progress = IndexProgressLine(err, redraws=False, clock=FakeClock().monotonic_s)
    progress.show_reading(ReadSoFar(51_200, 0, 1, 500, 1000))
    assert err.getvalue() == "reading 0/1 files, 51200 documents\n"


def test_a_line_that_the_terminal_has_no_room_for_is_cut() -> None:
    err = io.StringIO()
    progress = IndexProgressLine(err, redraws=True, clock=FakeClock().monotonic_s, columns=lambda: 30)
    progress.show_reading(so_far(2))
    progress.show(1, 1_000_000)
    for line in err.getvalue().removeprefix("\r").split("\r"):
        assert len(line.removesuffix("\x1b[K")) == 29
        assert line.removesuffix("\x1b[K").endswith("…")


def test_on_a_terminal_what_has_been_read_grows_where_the_bar_will_be() -> None:
    err = io.StringIO()
    clock = FakeClock()
    progress = IndexProgressLine(err, redraws=True, clock=clock.monotonic_s)
    for files in (0, 1, 2):
        progress.show_reading(so_far(files))
        clock.advance(REDRAWN_EVERY_S * 0.75)
    progress.end()
    nothing, half = "." * 20, "#" * 10 + "." * 10
    assert err.getvalue() == (
        f"\rreading [{nothing}] 0/4 files\x1b[K\rreading [{half}] 2/4 files, 13.3 MB/s, 0:00 left\x1b[K\n"
    )


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
