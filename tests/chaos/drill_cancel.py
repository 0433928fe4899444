"""Cancel at every phase, for every cause: one terminal event, nothing held, nobody disturbed (design §8).

A phase is held open with SIGSTOP on the instance that the request waits for, or by its length; what happens
within milliseconds (route, transfer) is met by a sweep of cancels over the whole way to the first token.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.bus.fleet_state import SUSPECT_AFTER_S
from tests.chaos.phases import (
    LONG_OUTPUT,
    PATIENCE_S,
    held_open,
    long_prompt_request,
    long_request,
    request_in,
)
from tests.chaos.report import DrillReport, spread
from tests.chaos.stack_watch import FREE_LIMIT_S, StackWatch, watching
from tests.chaos.storms import everyday, shutdown, storm
from tests.chaos.traffic import Stream, all_started, differences, run_streams, stream_requests
from tests.chaos.world import SLOTS, Models, drill_stack
from tests.support.client import connect, generate, request
from tests.support.stack import Stack
from tests.support.wait import until

HELD_S = 0.06
"""A request is left in the phase that is held open for so long."""
NEIGHBOURS = 2
EXPIRE_MS = 250
EXPIRE_REPLACED_MS = 1200
COUNTED_S = 30.0
"""The longest time until what has ended is counted: on a busy machine."""
SETTLED_S = 0.2

CAUSES = ("drop", "rpc", "id", "id twice", "id and rpc", "deadline")
PHASES = ("slot", "retrieve", "tokenize", "route", "prefill", "decode", "relay", "replace")


@dataclass(frozen=True, slots=True)
class Scale:
    repeats: int
    sweep: int
    storms: int
    storm_requests: int
    everyday: int
    neighbour_tokens: int = 900
    causes: tuple[str, ...] = CAUSES
    phases: tuple[str, ...] = PHASES


FULL = Scale(repeats=3, sweep=40, storms=10, storm_requests=200, everyday=500)
SHORT = Scale(1, 2, 1, 12, 12, neighbour_tokens=100, causes=("id and rpc",))


@dataclass(slots=True)
class CancelDrill:
    watch: StackWatch
    scale: Scale
    report: DrillReport
    undisturbed: list[Stream] = field(default_factory=list)
    free_ms: list[float] = field(default_factory=list)
    next_ttft_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    # ---- the matrix -----------------------------------------------------------------------------------

    async def cancel_at(self, phase: str, cause: str) -> None:
        """A few cancels, each beside neighbours that must not notice."""
        measured, wrong, ended = len(self.free_ms), len(self.wrong), await self._settled_ends()
        for _ in range(self.scale.repeats):
            await self._cancel_once(phase, cause)
        word = "expired" if cause == "deadline" else "cancelled"
        fillers = self.scale.repeats * (SLOTS - NEIGHBOURS) if phase == "slot" else 0
        due = Counter({"cancelled": fillers, "finished": self.scale.repeats * (NEIGHBOURS + 1)})
        due[word] += self.scale.repeats
        in_vain = Counter(due)  # whom no worker is left for may hear that before its deadline
        if (phase, cause) == ("replace", "deadline"):
            in_vain["expired"], in_vain["failed"] = 0, self.scale.repeats
        try:  # a request is counted when its call is over, behind its client
            await until(lambda: self.watch.ends() - ended in (due, +in_vain), timeout_s=COUNTED_S)
        except AssertionError:
            self.wrong.append(f"requests ended as {dict(self.watch.ends() - ended)}")
        verdict = "; ".join(self.wrong[wrong:]) or "as it should"
        self.report.add(phase, cause, self.scale.repeats, spread(self.free_ms[measured:]), verdict)

    async def _settled_ends(self) -> Counter[str]:
        """What has ended so far, and nothing of it is still to be counted behind its client."""
        before, ends = None, self.watch.ends()
        while ends != before:
            await asyncio.sleep(SETTLED_S)
            before, ends = ends, self.watch.ends()
        return ends

    async def _cancel_once(self, phase: str, cause: str) -> None:
        neighbours = [Stream(message) for message in self.neighbour_requests()]
        fillers = [Stream(long_request(seed)) for seed in range(SLOTS - NEIGHBOURS if phase == "slot" else 0)]
        victim = Stream(self._message(phase, cause), stops_reading=phase == "relay")
        async with connect(self.watch.stack.grpc) as other:
            calls = [asyncio.create_task(stream.follow(other)) for stream in (*neighbours, *fillers)]
            await all_started([*neighbours, *fillers])
            others = await self.watch.sessions()
            async with grpc.aio.insecure_channel(self.watch.stack.grpc) as channel:
                call = asyncio.create_task(victim.follow(rpc.InferenceStub(channel)))
                if phase in ("decode", "relay", "replace"):
                    await all_started([victim])
                async with held_open(self.watch.stack, phase):
                    await self._until_in_phase(phase, others, call)
                    await self._interrupt(cause, victim, channel, other, others)
                begun = time.perf_counter()
                victim.reads_on.set()
                self.free_ms.append(await self.watch.free_ms(others, begun))
                await call
            for filler in fillers:
                assert filler.call is not None
                filler.call.cancel()
            await asyncio.gather(*calls)
            answer = await generate(other, request("The next one", max_tokens=2, ignore_eos=True))
        self.next_ttft_ms.append(answer.ttft_us / 1e3)
        self.wrong += differences(neighbours, self.undisturbed)
        if victim.answer.ends > 1 or (cause == "deadline" and victim.answer.ends == 0):
            self.wrong.append(f"{victim.answer.ends} terminal events")

    def neighbour_requests(self) -> list[pb.GenerateRequest]:
        return stream_requests(NEIGHBOURS, self.scale.neighbour_tokens)

    def _message(self, phase: str, cause: str) -> pb.GenerateRequest:
        message = request_in(phase)
        if cause == "deadline":
            message.deadline_ms = EXPIRE_REPLACED_MS if phase == "replace" else EXPIRE_MS
        return message

    async def _until_in_phase(self, phase: str, others: set[str], call: asyncio.Task[Stream]) -> None:
        """Or until it is over: who asks for what cannot be done by its deadline hears so at once."""

        async def admitted() -> bool:
            return call.done() or bool(await self.watch.sessions() - others)

        await until(admitted)
        if not call.done() and phase not in ("decode", "relay"):
            await asyncio.sleep(SUSPECT_AFTER_S + HELD_S if phase == "replace" else HELD_S)

    async def _interrupt(
        self,
        cause: str,
        victim: Stream,
        channel: grpc.aio.Channel,
        other: rpc.InferenceStub,
        others: set[str],
    ) -> None:
        assert victim.call is not None
        match cause:
            case "drop":
                await channel.close(None)
            case "rpc":
                victim.call.cancel()
            case "deadline":
                await asyncio.sleep(victim.message.deadline_ms / 1e3)
            case _:
                asked = pb.CancelRequest(request_id=(await self.watch.sessions() - others).pop())
                await other.Cancel(asked)
                if cause == "id twice":
                    await other.Cancel(asked)
                elif cause == "id and rpc":
                    victim.call.cancel()

    # ---- on the way to the first token ------------------------------------------------------------

    async def sweep(self) -> None:
        """Long prompts cancelled a little later each time, from before admission to after the first token."""
        measured, wrong, ended = len(self.free_ms), len(self.wrong), self.watch.ends()
        async with connect(self.watch.stack.grpc) as stub:
            whole = await generate(stub, long_prompt_request(max_tokens=2), timeout_s=PATIENCE_S)
            for turn in range(self.scale.sweep):
                victim = Stream(long_prompt_request(max_tokens=LONG_OUTPUT))
                call = asyncio.create_task(victim.follow(stub))
                await asyncio.sleep(1.2 * turn / self.scale.sweep * whole.ttft_us / 1e6)
                begun = time.perf_counter()
                if victim.call is not None:
                    victim.call.cancel()
                await call
                self.free_ms.append(await self.watch.free_ms(set(), begun))
        never_came = 1  # the first one is cancelled before it is sent

        def all_counted() -> bool:
            counts = self.watch.ends() - ended
            return counts["cancelled"] >= self.scale.sweep - never_came and counts["finished"] == 1

        try:
            await until(all_counted, timeout_s=COUNTED_S)
        except AssertionError:
            self.wrong.append(f"requests ended as {dict(self.watch.ends() - ended)}")
        verdict = "; ".join(self.wrong[wrong:]) or "as it should"
        self.report.add(
            "sweep to 1.2 x TTFT", "rpc", self.scale.sweep, spread(self.free_ms[measured:]), verdict
        )

    async def stop_string(self) -> None:
        """The detokenizer ends it; decode must hear of that."""
        measured, wrong = len(self.free_ms), len(self.wrong)
        async with connect(self.watch.stack.grpc) as stub:
            for _ in range(self.scale.repeats):
                message = long_request(3)
                message.sampling.stop.append(" ")
                victim = await Stream(message).follow(stub)
                self.free_ms.append(await self.watch.free_ms(set(), time.perf_counter()))
                if (victim.outcome, victim.answer.finish_reason) != ("finished", "stop"):
                    self.wrong.append(f"ended as {victim.outcome}, {victim.answer.finish_reason}")
        verdict = "; ".join(self.wrong[wrong:]) or "as it should"
        self.report.add("decode", "stop string", self.scale.repeats, spread(self.free_ms[measured:]), verdict)

    def claim_all(self, baseline_ttft_ms: float, step_ms: float) -> None:
        p99 = spread(self.free_ms)
        steps = spread([value / step_ms for value in self.free_ms], "steps")
        self.report.claim(
            "one terminal event each, neighbours byte-identical", self.wrong or "all", holds=not self.wrong
        )
        self.report.claim(
            f"nothing held within {FREE_LIMIT_S:g} s of a cancel",
            f"{p99} = {steps} of {step_ms:.2f} ms {'; '.join(self.watch.slow)}",
            holds=max(self.free_ms) <= FREE_LIMIT_S * 1e3,
            timed=True,
        )
        self.report.claim(
            "the next request comes at full speed",
            f"TTFT {statistics.median(self.next_ttft_ms):.1f} ms, {baseline_ttft_ms:.1f} ms before",
            holds=statistics.median(self.next_ttft_ms) <= 2 * baseline_ttft_ms,
            timed=True,
        )


async def baseline(stack: Stack) -> tuple[float, float]:
    """Median TTFT of a short prompt, median time between two tokens; milliseconds."""
    ttft_ms, gaps_ms = [], []
    async with connect(stack.grpc) as stub:
        for _ in range(9):
            stream = await Stream(request("The next one", max_tokens=40, ignore_eos=True)).follow(stub)
            ttft_ms.append(stream.answer.ttft_us / 1e3)
            gaps_ms += [(b - a) * 1e3 for a, b in pairwise(stream.token_times_s)]
    return statistics.median(ttft_ms), statistics.median(gaps_ms)


def new_report(scale: Scale) -> DrillReport:
    title = f"cancel: {len(scale.phases)} phases, {len(scale.causes)} causes, storms"
    return DrillReport(title, ("at", "cause", "times", "zero held after p50 / p99 / max", ""))


async def hold_on(stack: Stack, scale: Scale, report: DrillReport) -> None:
    async with watching(stack) as watch:
        ttft_ms, step_ms = await baseline(stack)
        drill = CancelDrill(watch, scale, report)
        async with connect(stack.grpc) as stub:
            drill.undisturbed = await run_streams(stub, drill.neighbour_requests())
        for phase in scale.phases:
            for cause in scale.causes:
                await drill.cancel_at(phase, cause)
        await drill.stop_string()
        await drill.sweep()
        drill.claim_all(ttft_ms, step_ms)
        await storm(watch, report, scale.storms, scale.storm_requests)
        await everyday(watch, report, scale.everyday)


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report(scale)
    with drill_stack(models) as stack:
        await hold_on(stack, scale, report)
        await shutdown(stack, report)
    return report
