"""How many lines of one kind a process logs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from shared.telemetry.log_limit import MAX_LIBRARY_LINES_PER_S, MAX_LINES_PER_S, LogLimit
from shared.telemetry.logging import configure
from tests.support.clock import FakeClock


def passed(limit: LogLimit, event: dict[str, Any], times: int) -> list[Any]:
    """Return the lines that got through."""
    lines = []
    for _ in range(times):
        try:
            lines.append(limit(None, "info", dict(event)))
        except structlog.DropEvent:
            continue
    return lines


def test_lines_of_one_event_end_at_the_limit_and_those_of_another_go_on() -> None:
    limit = LogLimit(FakeClock())
    assert len(passed(limit, {"event": "refused"}, MAX_LINES_PER_S + 1)) == MAX_LINES_PER_S
    assert len(passed(limit, {"event": "ready"}, 1)) == 1


def test_the_next_second_has_room_again_and_says_what_was_left_out() -> None:
    clock = FakeClock()
    limit = LogLimit(clock)
    passed(limit, {"event": "refused"}, MAX_LINES_PER_S + 7)
    clock.advance(1.0)
    first, second = passed(limit, {"event": "ready"}, 2)
    assert first["left_out"] == {"refused": 7}
    assert "left_out" not in second


def test_a_library_has_fewer_lines_whatever_it_says() -> None:
    limit = LogLimit(FakeClock())
    lines = [len(passed(limit, {"event": f"trouble {n}", "logger": "asyncio"}, 1)) for n in range(50)]
    assert sum(lines) == MAX_LIBRARY_LINES_PER_S


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """Put back what `configure` changes."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.configure(**before)


@pytest.mark.usefixtures("unconfigured")
def test_a_process_that_is_configured_bounds_its_lines() -> None:
    written = io.StringIO()
    configure("info", "gateway", "gateway-0", written)
    for number in range(1000):
        logging.getLogger("asyncio").error("socket.accept() failed %d", number)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert MAX_LIBRARY_LINES_PER_S <= len(lines) < 1000 / 2
    assert lines[0]["logger"] == "asyncio"
