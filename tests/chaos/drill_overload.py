"""Overload: three and ten times what the stack can do, steady and in bursts (design §12, §16).

Admitted or shed at once, with a reason and a hint, by class; what is admitted finishes, and nobody is
suspected who is merely busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from tests.chaos.load import CLASSES, Load, Shape, closed_loop, narrow_channel, open_loop
from tests.chaos.phases import PROMPT_IDS
from tests.chaos.report import DrillReport, spread
from tests.chaos.traffic import STREAM_TIMEOUT_S, Stream, all_started
from tests.chaos.world import SLOTS, UNREAD_TOKENS, Models, drill_stack
from tests.support.client import connect, request
from tests.support.percentile import percentile
from tests.support.stack import Stack, resident_mb

DEADLINE_MS = 8_000
PATIENT_DEADLINE_MS = 60_000
"""The deadline of the clients that show what the stack can do: each waits until it has its answer."""
PATIENCE = 2.0
"""Times the slowest answer of patient clients, at least."""
GOODPUT_LIMIT = 0.9
SHED_OWN_LIMIT_MS = 2.0
RESIDENT_SLACK = 1.2


@dataclass(frozen=True, slots=True)
class Scale:
    best_s: float
    load_s: float
    loads: tuple[float, ...]
    burst: int
    ttft_deadline_ms: int
    output_tokens: int

    @property
    def patient(self) -> Shape:
        return Shape(self.output_tokens, deadline_ms=PATIENT_DEADLINE_MS)

    def shape_beside(self, best: Load) -> Shape:
        """With time enough for an answer that has been begun, also on a slow machine."""
        slowest_ms = max(call.total_s for call in best.ended("finished")) * 1e3
        return Shape(
            self.output_tokens, max(DEADLINE_MS, round(PATIENCE * slowest_ms)), self.ttft_deadline_ms
        )


FULL = Scale(10.0, 30.0, (3.0, 10.0), 60, ttft_deadline_ms=4_000, output_tokens=600)
SHORT = Scale(0.4, 0.6, (3.0,), 0, ttft_deadline_ms=1_000, output_tokens=100)
"""Its load is over before many have to wait for longer than a second."""


class OverloadDrill:
    def __init__(self, stack: Stack, scale: Scale, report: DrillReport) -> None:
        self._stack = stack
        self._scale = scale
        self._report = report
        self.goodputs: dict[str, float] = {}

    async def hold_all(self) -> None:
        async with narrow_channel(self._stack.grpc) as stub:
            await closed_loop(
                stub, self._scale.patient, SLOTS, self._scale.best_s / 4
            )  # pools and caches get their size
            best = await closed_loop(stub, self._scale.patient, 2 * SLOTS, self._scale.best_s)
            self._tell("closed loop", best, best)
            rate, shape = len(best.ended("finished")) / best.seconds, self._scale.shape_beside(best)
            before_mb = self._resident_mb()
            for times in self._scale.loads:
                self._tell(
                    f"{times:g}x",
                    await open_loop(stub, [shape], times * rate, self._scale.load_s),
                    best,
                )
            if self._scale.burst:
                bursts = await open_loop(stub, [shape], 3 * rate, self._scale.load_s, burst=self._scale.burst)
                self._tell(f"3x, {self._scale.burst} at a time", bursts, best)
        self._claim_memory(before_mb)
        await self._stack.until_idle()

    def _tell(self, name: str, load: Load, best: Load) -> None:
        outcomes, ratio = load.outcomes(), load.goodput / best.goodput
        shed = load.ended("shed")
        finished = "/".join(str(len(load.ended("finished", one))) for one in CLASSES)
        low_ms = [call.answer.ttft_us / 1e3 for call in load.ended("finished", pb.PRIORITY_LOW)]
        self._report.add(
            name,
            len(load.calls),
            finished,
            outcomes["shed"],
            outcomes["expired"],
            sum(outcomes.values()) - outcomes["finished"] - outcomes["shed"] - outcomes["expired"],
            f"{ratio:.2f}",
            spread([call.total_s * 1e3 for call in shed]),
            spread(low_ms),
            replaced(load),
        )
        if load is best:
            return
        self._claim_shed(name, load)
        self._report.claim(
            f"{name}: goodput at least {GOODPUT_LIMIT:.0%} of the best",
            f"{ratio:.1%} ({load.goodput:.0f} and {best.goodput:.0f} tokens/s)",
            holds=ratio >= GOODPUT_LIMIT,
            timed=True,
        )
        alien = {word: n for word, n in outcomes.items() if word not in ("finished", "shed", "expired")}
        self._report.claim(f"{name}: every call ends in a word of its own", alien or "all", holds=not alien)
        self._report.claim(
            f"{name}: nobody is suspected who is merely busy",
            f"{replaced(load)} replacements, {self._lost()} instances lost",
            holds=replaced(load) == 0 and self._lost() == 0,
            timed=True,
        )

    def _claim_shed(self, name: str, load: Load) -> None:
        shed = load.ended("shed")
        if not shed:
            # A machine that has more to give than when the rate was found may be able to serve them all.
            in_vain = len(load.calls) - len(load.ended("finished"))
            figure = f"nothing was, and {in_vain} of {len(load.calls)} were not served"
            self._report.claim(f"{name}: what cannot be served is shed", figure, holds=in_vain == 0)
            return
        hints_ms = [call.answer.end.error.retry_after_ms for call in shed if call.answer.end is not None]
        ends = [call.answer.end for call in shed if call.answer.end is not None]
        own_ms = [end.timeline.total_us / 1e3 for end in ends if len(end.timeline.phases) == 1]
        reasons = {call.answer.status.name for call in shed}
        self._report.claim(
            f"{name}: shed with RESOURCE_EXHAUSTED, a reason and a hint",
            f"{', '.join(reasons)}, {min(hints_ms)} to {max(hints_ms)} ms",
            holds=reasons == {"RESOURCE_EXHAUSTED"} and min(hints_ms) > 0,
        )
        at_once_ms = percentile(own_ms, 0.5)
        self._report.claim(
            f"{name}: shed at once within {SHED_OWN_LIMIT_MS:g} ms of the gateway's (median)",
            f"{spread(own_ms)} for {len(own_ms)}; {len(shed) - len(own_ms)} were overtaken in the queue",
            holds=at_once_ms <= SHED_OWN_LIMIT_MS,
            timed=True,
        )

    def _resident_mb(self) -> dict[str, float]:
        return {row.id: resident_mb(row.pid) for row in self._stack.instances()}

    def _claim_memory(self, before_mb: dict[str, float]) -> None:
        grown = [
            f"{name} {before_mb[name]:.0f} to {now_mb:.0f} MB"
            for name, now_mb in self._resident_mb().items()
            if now_mb > RESIDENT_SLACK * before_mb[name]
        ]
        self._report.claim("memory stays bounded", "; ".join(grown) or "flat", holds=not grown)

    def _lost(self) -> int:
        return sum('"event":"instance_lost"' in line.replace(" ", "") for line in self._stack.log)

    async def slow_reader(self) -> None:
        """Who does not read is cut off, and holds nothing then."""
        async with narrow_channel(self._stack.grpc) as stub:
            reader = Stream(
                request("A story", max_tokens=20 * UNREAD_TOKENS, ignore_eos=True, logprobs=20),
                stops_reading=True,
            )
            call = asyncio.create_task(reader.follow(stub))
            await all_started([reader])
            await self._stack.until_idle(STREAM_TIMEOUT_S)
            reader.reads_on.set()
            await call
        self._report.claim("a slow reader is cut off", reader.outcome, holds=reader.outcome == "cancelled")

    async def too_large(self) -> None:
        """What will never fit is no overload."""
        async with connect(self._stack.grpc) as stub:
            stream = await Stream(request(list(PROMPT_IDS) * 42, max_tokens=8)).follow(stub)
        status = stream.answer.status.name
        self._report.claim("what is too large is not shed", status, holds=status == "INVALID_ARGUMENT")


def replaced(load: Load) -> int:
    return sum(c.answer.end.usage.replacements for c in load.calls if c.answer.end is not None)


HEAD: Sequence[str] = (
    *("load", "sent", "finished high/normal/low", "shed", "expired", "other", "goodput"),
    *("shed after p50 / p99 / max", "TTFT of low", "replaced"),
)


def new_report() -> DrillReport:
    return DrillReport("overload", tuple(HEAD))


async def hold_on(stack: Stack, scale: Scale, report: DrillReport) -> None:
    drill = OverloadDrill(stack, scale, report)
    await drill.hold_all()
    await drill.slow_reader()
    await drill.too_large()


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report()
    with drill_stack(models) as stack:
        await hold_on(stack, scale, report)
    return report
