"""Calls come by their times."""

from __future__ import annotations

from services.cli.capacity.pipeline.event_line import EventLine


def test_calls_come_in_order_and_those_of_one_moment_as_they_were_put() -> None:
    line, seen = EventLine(), list[tuple[float, str]]()

    def note(name: str) -> None:
        seen.append((line.now_s, name))
        if name == "first":
            line.at(1.5, note, "between")

    line.at(2.0, note, "later")
    line.at(1.0, note, "first")
    line.at(2.0, note, "as late")
    line.play()
    assert seen == [(1.0, "first"), (1.5, "between"), (2.0, "later"), (2.0, "as late")]
