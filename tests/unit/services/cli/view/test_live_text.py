from __future__ import annotations

import io

import pytest

from services.cli.view.live_text import LiveText


@pytest.fixture(autouse=True)
def small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "4")


def test_without_a_terminal_texts_follow_each_other() -> None:
    out = io.StringIO()
    live = LiveText(out, redraws=False)
    live.show("one two three four")
    live.show("b")
    assert out.getvalue() == "one two three four\nb\n"


def test_on_a_terminal_a_text_takes_the_place_of_the_one_before() -> None:
    out = io.StringIO()
    live = LiveText(out, redraws=True)
    live.show("a\nb")
    live.show("c")
    assert out.getvalue() == "a\x1b[K\nb\x1b[K\n\x1b[J\x1b[2Fc\x1b[K\n\x1b[J"


def test_what_does_not_fit_is_cut_and_said() -> None:
    out = io.StringIO()
    LiveText(out, redraws=True).show("0123456789abc\n1\n2\n3\n4")
    assert out.getvalue().replace("\x1b[K", "").replace("\x1b[J", "") == "01234567…\n1\n… 3 more…\n"
