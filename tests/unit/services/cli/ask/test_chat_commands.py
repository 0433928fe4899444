"""The words of /help fit a terminal of 80 columns."""

from __future__ import annotations

from services.cli.ask.chat_commands import HELP


def test_no_line_of_the_help_is_cut_by_a_terminal() -> None:
    assert [line for line in HELP.splitlines() if len(line) >= 80] == []
