"""Measure how well lengths of answers are predicted from history, and what a queue decides by that.

    python -m tests.bench.bench_answer_lengths error --mooncake FILE
    python -m tests.bench.bench_answer_lengths queue --mooncake FILE [--slots 48] [--patience 5]

`error` goes through a trace in its order: each answer is predicted from those before it, then counted.
`queue` plays the trace on the gateway's own queue for slots, on virtual time: streams share steps whose time
is by how many there are, and a client waits for its slot as long as it has patience. Who is expected to wait
for longer is shed as it comes; who waits in vain has cost its client that time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import selectors
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.capacity.workload_trace import trace_rows
from services.gateway.admission.admission_queue import AdmissionQueue
from services.gateway.admission.answer_lengths import SURE_SHARE, AnswerKind, AnswerLengths
from services.gateway.admission.running_answers import RunningAnswer
from services.gateway.admission.ticket import CLASSES, Ticket
from services.gateway.fleet.model_identity import ModelIdentity
from shared.blocks.room import LOOK_AHEAD_TOKENS
from shared.deadline import Deadline
from shared.errors import Overloaded
from shared.fairness.share import OPEN_SHARE
from shared.fairness.token_cost import request_cost
from shared.tasks import Tasks
from shared.telemetry.metrics import prompt_bucket

MODEL = ModelIdentity("m")
NORMAL_CLASS = sorted(CLASSES.values())[1]
MAX_TOKENS = 4096
"""Every request of the trace allows so many: the longest answer in it has fewer."""
CHUNK_TOKENS = 16
STEP_MS, ROW_MS = 20.0, 0.5
SLOW_S = 1.0
"""A wait that is mistaken by less is right enough."""

Rows = Sequence[tuple[float, int, int]]
"""(at_s, prompt tokens, answer tokens), by time."""


def kind_of(prompt_tokens: int) -> AnswerKind:
    return AnswerKind(MODEL.name, "", "text", prompt_bucket(prompt_tokens))


def report_error(rows: Rows) -> None:
    """Print errors of what an answer counts with, beside those of max_tokens and of one mean for all."""
    lengths, seen = AnswerLengths(), 0.0
    means: dict[str, list[tuple[float, int, int]]] = {"max_tokens": [], "one mean": [], "predicted": []}
    within, rooms = 0, [0.0, 0.0]
    for number, (_, prompt, answer) in enumerate(rows):
        kind = kind_of(prompt)
        estimate = lengths.estimate(kind)
        if estimate is not None:
            most = estimate.at_most(SURE_SHARE, MAX_TOKENS)
            within += answer <= most
            for name, said in (
                ("max_tokens", MAX_TOKENS),
                ("one mean", seen / number),
                ("predicted", estimate.mean(MAX_TOKENS)),
            ):
                means[name].append((said, prompt, answer))
            for place, end in enumerate((MAX_TOKENS, most)):
                rooms[place] += sum(
                    min(LOOK_AHEAD_TOKENS, (end if end > drawn else MAX_TOKENS) - drawn)
                    for drawn in range(answer)
                )
        lengths.record(kind, answer, cut=False)
        seen += answer
    total = len(means["predicted"])
    print(f"{total} answers; {within / total:.1%} within what {SURE_SHARE:.0%} were not to exceed")
    print("an answer counts with    mean error, tokens    cost promised / true, median and p95 of the ratio")
    for name, pairs in means.items():
        error = statistics.fmean(abs(said - answer) for said, _, answer in pairs)
        ratios = sorted(
            request_cost(prompt, said) / request_cost(prompt, answer) for said, prompt, answer in pairs
        )
        print(
            f"{name:24} {error:12.0f}          {statistics.median(ratios):6.2f} "
            f"{ratios[int(0.95 * len(ratios))]:8.2f}"
        )
    steps = sum(answer for _, _, answer in means["predicted"])
    print(f"room kept ahead, tokens in the mean: {rooms[0] / steps:.0f} as ever, {rooms[1] / steps:.0f} so")


# ---- the queue -------------------------------------------------------------------------------------------


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: the time is set on instead."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += max(0.0, timeout or 0.0)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop without sockets, whose time passes at once. It is a clock too."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def monotonic_s(self) -> float:
        return self._jumping.now_s

    def unix_us(self) -> int:
        return round(1e6 * self._jumping.now_s)

    steady_us = unix_us


@dataclass(slots=True)
class PlayedQueue:
    """The ends of the requests: `waits` are of those that had a slot, as (expected, true) seconds, where they
    had to wait; `vain_s` is how long those waited that had none."""

    served: int = 0
    shed: int = 0
    sent_away: int = 0
    expired: int = 0
    tokens: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    vain_s: float = 0.0

    def row(self, name: str) -> str:
        errors = [abs(expected - true) for expected, true in self.waits]
        late = [true - expected for expected, true in self.waits if true - expected > SLOW_S]
        soon = [expected - true for expected, true in self.waits if expected - true > SLOW_S]
        return (
            f"{name:10} served {self.served}, shed at once {self.shed}, sent away {self.sent_away}, in vain "
            f"{self.expired}; waited in vain {self.vain_s:.0f} s; waits {len(self.waits)}: error mean "
            f"{statistics.fmean(errors):.2f} s p95 {sorted(errors)[int(0.95 * len(errors))]:.2f} s, "
            f"{len(late) / len(errors):.0%} promised {SLOW_S:g} s too soon, {len(soon) / len(errors):.0%} "
            "too late"
        )


class QueuePlay:
    def __init__(self, loop: JumpingLoop, slots: int, patience_s: float, *, predicts: bool) -> None:
        self._loop = loop
        self._slots = slots
        self._patience_s = patience_s
        self._predicts = predicts
        self._live = 0
        self._lengths = AnswerLengths()
        self._tasks = Tasks()
        self._queue = AdmissionQueue(
            lambda *_: self._slots - self._live, lambda *_: True, self._tasks.start, loop
        )
        self.played = PlayedQueue()

    async def play(self, rows: Rows) -> PlayedQueue:
        for at_s, prompt, answer in rows:
            await asyncio.sleep(max(0.0, at_s - self._loop.time()))
            self._tasks.start("request", self._request(prompt, answer))
        await self._tasks.finish(math.inf)
        return self.played

    async def _request(self, prompt: int, answer: int) -> None:
        kind, came_s = kind_of(prompt), self._loop.time()
        expected_s = self._queue.expected_wait_s(MODEL, NORMAL_CLASS, OPEN_SHARE)
        if expected_s > self._patience_s:
            self.played.shed += 1
            return
        estimate = self._lengths.estimate(kind) if self._predicts else None
        meter = self._queue.meter()
        meter.expect_answer(RunningAnswer(MODEL, estimate, MAX_TOKENS))
        mean = MAX_TOKENS if estimate is None else estimate.mean(MAX_TOKENS)
        deadline = Deadline.after(self._patience_s, self._loop)
        ticket = Ticket(MODEL, NORMAL_CLASS, deadline, 1, came_s, meter, prompt, mean)
        try:
            async with deadline.timeout(self._loop), self._queue.turn(ticket) as turn:
                self._live += 1
        except (TimeoutError, Overloaded) as error:
            self.played.sent_away += isinstance(error, Overloaded)
            self.played.expired += isinstance(error, TimeoutError)
            self.played.vain_s += self._loop.time() - came_s
            return
        if turn.waited:
            self.played.waits.append((expected_s, self._loop.time() - came_s))
        for start in range(0, answer, CHUNK_TOKENS):
            tokens = min(CHUNK_TOKENS, answer - start)
            await asyncio.sleep(tokens * (STEP_MS + ROW_MS * self._live) / 1e3)
            meter.draw(tokens)
        self._live -= 1
        meter.end()
        self._queue.record_end()
        self._lengths.record(kind, answer, cut=False)
        self.played.served += 1
        self.played.tokens += answer


def report_queue(rows: Rows, slots: int, patience_s: float) -> None:
    for name, predicts in (("measured", False), ("predicted", True)):
        loop = JumpingLoop()
        with contextlib.closing(loop):
            play = QueuePlay(loop, slots, patience_s, predicts=predicts)
            print(loop.run_until_complete(play.play(rows)).row(name), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("error", "queue"))
    parser.add_argument("--mooncake", type=Path, required=True, help="the trace of conversations")
    parser.add_argument("--slots", type=int, default=48)
    parser.add_argument("--patience", type=float, default=5.0, help="seconds that clients wait for a slot")
    parser.add_argument("--speed", type=float, default=1.0, help="times as fast as the trace")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the trace, from its begin")
    options = parser.parse_args()
    rows, _ = trace_rows("mooncake", options.mooncake, options.speed, 1.0)
    rows = [row for row in rows if row[0] < options.seconds] if options.what == "queue" else rows
    if options.what == "error":
        report_error(rows)
    else:
        report_queue(rows, options.slots, options.patience)


if __name__ == "__main__":
    main()
