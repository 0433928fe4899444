"""How far a load is, on a terminal: in one line that is written again."""

from __future__ import annotations

import asyncio
import io

from services.cli.bench.report.load_progress import KEPT, SHOW_S, BenchProgress
from services.cli.bench.targets.target import CallOutcome
from services.cli.view.live_text import LiveText
from tests.support.clock import FakeClock
from tests.support.virtual_time import run_virtual, virtual_now_s
from tests.unit.services.cli.bench.records import call_record


def test_progress_says_what_has_ended() -> None:
    clock = FakeClock()
    progress = BenchProgress(None, clock.monotonic_s)
    assert progress.line("") == "0 s: nothing has ended yet; ttft - ms"
    clock.advance(3.0)
    for record in (call_record(ttft_s=0.2), call_record(outcome=CallOutcome.SHED)):
        progress.add(record)
    assert progress.line("4 requests/s, ") == "4 requests/s, 3 s: 1 finished, 1 shed; ttft 200 ms"


def test_its_median_is_of_the_last_calls() -> None:
    progress = BenchProgress(None, FakeClock().monotonic_s)
    for ttft_s in (9.0, *[0.1] * KEPT):
        progress.add(call_record(ttft_s=ttft_s))
    for _ in range(KEPT // 2 + 1):
        progress.add(call_record(ttft_s=0.3))
    assert progress.line("").endswith("ttft 300 ms")


def test_it_is_shown_again_and_again_until_the_load_has_ended() -> None:
    async def main() -> str:
        out = io.StringIO()
        progress = BenchProgress(LiveText(out, redraws=True), virtual_now_s)
        async with progress.shown("load, "):
            await asyncio.sleep(2.5 * SHOW_S)
        await asyncio.sleep(5 * SHOW_S)
        return out.getvalue()

    said = run_virtual(main())
    assert [f"load, {second} s: nothing" in said for second in (1, 2, 3)] == [True, True, False]
    assert said.count("\x1b[1F") == 1  # the second line takes the place of the first
