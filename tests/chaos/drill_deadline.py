"""Deadlines: expiry in each phase ends as expired, in time, naming the hop (design §7).

Also at three times the load, with deadlines that only gRPC knows of, and with instances whose clocks are off.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.chaos.load import Call, Shape, closed_loop, narrow_channel, one_call, open_loop
from tests.chaos.phases import held_open, long_request, request_in
from tests.chaos.report import DrillReport, spread
from tests.chaos.skewed_clock import skewed_environ
from tests.chaos.traffic import Stream, all_started
from tests.chaos.world import SLOTS, Models, counted, drill_stack, until_serving
from tests.support.client import connect
from tests.support.percentile import percentile
from tests.support.stack import Stack

LATE_LIMIT_MS = 50.0
EXPIRE_MS = 200
GIVE_UP_S = 20.0
SKEW_MS = {
    f"{role}-{number}": ms
    for role, ms in {"decode": 300, "prefill": -300, "tokenizer": 300, "detokenizer": -300}.items()
    for number in (0, 1)
}
SKEW_TOLERANCE_S = 0.02
LOAD = 3.0
BARE_LIMIT = 0.01
HOPS = {
    "slot": {"route", "decode"},
    "retrieve": {"retriever"},
    "tokenize": {"tokenizer"},
    "route": {"route", "detokenizer"},
    "prefill": {"prefill"},
    "decode": {"decode"},
}
"""The hops that an expiry in a phase may name."""
ON_THE_WAY = {
    "slot": {"tokenizer"},
    "route": {"tokenizer"},
    "prefill": {"tokenizer", "route", "detokenizer"},
    "decode": {"tokenizer", "route", "detokenizer", "prefill"},
}
"""The hops that a request names which expired before it came into the phase, as happens on a busy machine: it
says nothing of the phase, and is sent once more with twice the time."""
TRIES = 4
IN_VAIN = {"slot": {"expired", "shed"}}
"""The ends of a request in a phase, where it is not `expired` alone: one that cannot have a slot in time may
be told so at once."""


@dataclass(frozen=True, slots=True)
class Scale:
    repeats: int
    load_s: float


FULL = Scale(5, 20.0)
SHORT = Scale(1, 0.0)


class DeadlineDrill:
    def __init__(self, stack: Stack, scale: Scale, report: DrillReport) -> None:
        self._stack = stack
        self._scale = scale
        self._report = report
        self.late_ms: list[float] = []
        self.wrong: list[str] = []
        self.bare = 0
        """Calls that gRPC ended before their terminal event was there."""

    async def expire_everywhere(self) -> None:
        for phase in HOPS:
            for which in ("total", "gRPC") if phase == "decode" else ("total", "first token", "gRPC"):
                await self.expire_in(phase, which)

    async def expire_in(self, phase: str, which: str) -> None:
        """`which`: the total deadline, that of the first token, or that of the gRPC call alone."""
        late_ms, hops = [], set()
        async with connect(self._stack.grpc) as stub:
            fillers = [
                Stream(long_request(seed), stops_reading=True)
                for seed in range(SLOTS if phase == "slot" else 0)
            ]
            filling = [asyncio.create_task(filler.follow(stub)) for filler in fillers]
            await all_started(fillers)
            for _ in range(self._scale.repeats):
                async with held_open(self._stack, phase):
                    call, expire_ms = await self._expired(stub, phase, which)
                late_ms.append(call.total_s * 1e3 - expire_ms)
                hop = hop_of(call)
                hops.add(hop)
                if call.outcome == "bare DEADLINE_EXCEEDED":  # on a slow machine gRPC is faster
                    self.bare += 1
                elif (
                    call.outcome not in IN_VAIN.get(phase, {"expired"})
                    or call.answer.ends != 1
                    or hop not in HOPS[phase]
                ):
                    self.wrong.append(f"{phase}, {which}: {call.outcome} at {hop!r} {call.answer.details}")
                if not fillers:
                    await until_serving(self._stack)
            for filler in fillers:
                assert filler.call is not None
                filler.call.cancel()
                filler.reads_on.set()
            await asyncio.gather(*filling)
        await until_serving(self._stack)
        self.late_ms += late_ms
        self._report.add(phase, which, self._scale.repeats, spread(late_ms), ", ".join(sorted(hops)))

    async def _expired(self, stub: rpc.InferenceStub, phase: str, which: str) -> tuple[Call, int]:
        """A call that came into the phase before it expired, and after how many ms that was to be."""
        expire_ms = EXPIRE_MS
        for _ in range(TRIES):
            timeout_s = expire_ms / 1e3 if which == "gRPC" else GIVE_UP_S
            call = await one_call(stub, self._message(phase, which, expire_ms), timeout_s)
            if hop_of(call) not in ON_THE_WAY.get(phase, set()):
                break
            expire_ms *= 2
        return call, expire_ms

    def _message(self, phase: str, which: str, expire_ms: int) -> pb.GenerateRequest:
        message = request_in(phase)
        if which == "total":
            message.deadline_ms = expire_ms
        elif which == "first token":
            message.ttft_deadline_ms = expire_ms
        return message

    async def under_load(self) -> None:
        """Three times what the stack can do, half of the deadlines told to gRPC alone."""
        shape = Shape(300, deadline_ms=60_000)
        async with narrow_channel(self._stack.grpc) as stub:
            best = await closed_loop(stub, shape, 2 * SLOTS, self._scale.load_s / 2)
            rate = LOAD * len(best.calls) / best.seconds
            shapes = (Shape(300, deadline_ms=1500), Shape(300, deadline_ms=1500, grpc_deadline=True))
            load = await open_loop(stub, shapes, rate, self._scale.load_s)
        late_ms = [1e3 * call.total_s - shapes[0].deadline_ms for call in load.calls]
        outcomes = load.outcomes()
        bare = outcomes["bare DEADLINE_EXCEEDED"]
        alien = set(outcomes) - {"finished", "expired", "shed", "bare DEADLINE_EXCEEDED"}
        self._report.add(f"{LOAD:g}x load", "half by gRPC", len(load.calls), spread(late_ms), dict(outcomes))
        self._report.claim("every call is served, shed or expired", dict(outcomes), holds=not alien)
        self._report.claim(
            f"at {LOAD:g}x load the terminal event comes before gRPC's own end (99 %)",
            f"{bare} of {len(load.calls)} did not",
            holds=bare <= BARE_LIMIT * len(load.calls),
            timed=True,
        )
        self._report.claim(
            f"at {LOAD:g}x load no call outlasts its deadline by {LATE_LIMIT_MS:g} ms (p99)",
            f"{percentile(late_ms, 0.99):.1f} ms",
            holds=percentile(late_ms, 0.99) <= LATE_LIMIT_MS,
            timed=True,
        )

    def claim_all(self, where: str) -> None:
        p99_ms = percentile(self.late_ms, 0.99)
        text = f"terminal within {LATE_LIMIT_MS:g} ms of the deadline (p99){where}"
        self._report.claim(text, f"{p99_ms:.1f} ms", holds=p99_ms <= LATE_LIMIT_MS, timed=True)
        self._report.claim(
            f"the terminal event comes before gRPC's own end{where}",
            f"{self.bare} did not",
            holds=self.bare == 0,
            timed=True,
        )
        self._report.claim(
            f"expiry in each phase is expired, at its hop{where}", self.wrong or "all", holds=not self.wrong
        )

    def claim_flagged(self) -> None:
        """Each wrong clock shows in its instance's metrics."""
        off = {
            row.id: counted(row, "penstock_clock_skew_seconds", origin="gateway-0")
            for row in self._stack.instances()
            if row.id in SKEW_MS
        }
        right = all(abs(off[name] - ms / 1e3) < SKEW_TOLERANCE_S for name, ms in SKEW_MS.items())
        shown = ", ".join(f"{name} {seconds * 1e3:+.0f} ms" for name, seconds in off.items())
        self._report.claim("wrong clocks are flagged", shown, holds=right)


def hop_of(call: Call) -> str:
    """Whom its end names; "" without one."""
    return "" if call.answer.end is None else call.answer.end.error.hop


def new_report() -> DrillReport:
    return DrillReport(
        "deadlines",
        ("expires at", "deadline", "times", "later than the deadline p50 / p99 / max", "hop named"),
    )


async def hold_on(stack: Stack, scale: Scale, report: DrillReport) -> None:
    drill = DeadlineDrill(stack, scale, report)
    await drill.expire_everywhere()
    drill.claim_all("")
    if scale.load_s:
        await drill.under_load()


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report()
    with drill_stack(models) as stack:
        await hold_on(stack, scale, report)
    with tempfile.TemporaryDirectory() as scratch:
        environ = skewed_environ(Path(scratch), SKEW_MS)
        with drill_stack(models, environ=environ) as stack:
            drill = DeadlineDrill(stack, scale, report)
            await drill.expire_everywhere()
            drill.claim_all(", clocks 300 ms off")
            drill.claim_flagged()
    return report
