"""Cancel at every phase, for every cause: one terminal event, nothing held, nobody disturbed (design §8).

A phase is held open with SIGSTOP on the instance that the request waits for, or by its length; what happens
within milliseconds (placement, transfer) is met by a sweep of cancels over the whole way to the first token.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.bus import Bus
from shared.bus.fleet_state import SUSPECT_AFTER_S
from tests.chaos.report import DrillReport, spread
from tests.chaos.traffic import Stream, all_started, differences, run_streams, stream_requests
from tests.chaos.world import Models, counted, open_files, resident_mb, stopped
from tests.support.client import connect, generate, request
from tests.support.stack import Stack, audit
from tests.support.wait import until

SEATS = 6
"""Of each of the two decode workers."""
FREE_LIMIT_S = 1.0
STORM_LIMIT_S = 2.0
GIVE_UP_S = 20.0
HELD_S = 0.06
"""How long a request is left in the phase that is held open."""
LONG_PROMPT = 9_000
LONG_OUTPUT = 2_500
DROPPED_OUTPUT = 10_000
NEIGHBOURS = 2
EXPIRE_MS = 250
EXPIRE_REPLACED_MS = 1200
COUNTED_S = 2.0
EVERYDAY_AT_ONCE = 12
STORM_S = 0.5
RESIDENT_SLACK = 1.05
FILES_SLACK = 8

HELD_OPEN = {
    "retrieve": "retriever",
    "tokenize": "tokenizer",
    "place": "detokenizer",
    "replace": "decode",
}
"""Whose standing still keeps a request in a phase."""
CAUSES = ("drop", "rpc", "id", "id twice", "id and rpc", "deadline")
PHASES = ("seat", "retrieve", "tokenize", "place", "prefill", "decode", "relay", "replace")


@dataclass(frozen=True, slots=True)
class Scale:
    repeats: int
    sweep: int
    storms: int
    storm_requests: int
    everyday: int
    causes: tuple[str, ...] = CAUSES
    phases: tuple[str, ...] = PHASES


FULL = Scale(repeats=3, sweep=40, storms=10, storm_requests=200, everyday=500)
SHORT = Scale(1, 6, 1, 40, 60, causes=("drop", "id and rpc", "deadline"))


@dataclass(slots=True)
class CancelDrill:
    stack: Stack
    scale: Scale
    report: DrillReport
    bus: Bus
    undisturbed: list[Stream] = field(default_factory=list)
    free_ms: list[float] = field(default_factory=list)
    next_ttft_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    # ---- the matrix -----------------------------------------------------------------------------------

    async def cancel_at(self, phase: str, cause: str) -> None:
        """A few cancels, each beside neighbours that must not notice."""
        measured, wrong, ended = len(self.free_ms), len(self.wrong), self.ends()
        for _ in range(self.scale.repeats):
            await self._cancel_once(phase, cause)
        word = "expired" if cause == "deadline" else "cancelled"
        fillers = self.scale.repeats * 2 * SEATS if phase == "seat" else 0
        due = Counter({"cancelled": fillers, "finished": self.scale.repeats * (NEIGHBOURS + 1)})
        due[word] += self.scale.repeats
        in_vain = Counter(due)  # whom no worker is left for may hear that before its deadline
        if (phase, cause) == ("replace", "deadline"):
            in_vain["expired"], in_vain["failed"] = 0, self.scale.repeats
        try:  # a request is counted when its call is over, behind its client
            await until(lambda: self.ends() - ended in (due, +in_vain), timeout_s=COUNTED_S)
        except AssertionError:
            self.wrong.append(f"requests ended as {dict(self.ends() - ended)}")
        verdict = "; ".join(self.wrong[wrong:]) or "as it should"
        self.report.add(phase, cause, self.scale.repeats, spread(self.free_ms[measured:]), verdict)

    async def _cancel_once(self, phase: str, cause: str) -> None:
        neighbours = [Stream(message) for message in self.neighbour_requests()]
        fillers = [Stream(long_request(seed)) for seed in range(2 * SEATS if phase == "seat" else 0)]
        victim = Stream(self._message(phase, cause), stops_reading=phase == "relay")
        async with connect(self.stack.grpc) as other:
            calls = [asyncio.create_task(stream.follow(other)) for stream in (*neighbours, *fillers)]
            await all_started([*neighbours, *fillers])
            others = await self._sessions()
            async with grpc.aio.insecure_channel(self.stack.grpc) as channel:
                call = asyncio.create_task(victim.follow(rpc.InferenceStub(channel)))
                if phase in ("decode", "relay", "replace"):
                    await all_started([victim])
                async with self._held_open(phase):
                    await self._until_in_phase(phase, others)
                    await self._interrupt(cause, victim, channel, other, others)
                begun = time.perf_counter()
                victim.reads_on.set()
                await self._until_free(others, begun)
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
        return stream_requests(NEIGHBOURS, 900)

    def _message(self, phase: str, cause: str) -> pb.GenerateRequest:
        message = long_request(3)
        if phase == "prefill":
            message = request(random_prompt(LONG_PROMPT), max_tokens=64, ignore_eos=True)
        if phase == "retrieve":
            message.ClearField("text")
            message.chat.messages.add(role="user", content="What is a lease?")
            message.retrieval.CopyFrom(pb.Retrieval(enabled=True, may_degrade=False))
        if cause == "deadline":
            message.deadline_ms = EXPIRE_REPLACED_MS if phase == "replace" else EXPIRE_MS
        return message

    @contextlib.asynccontextmanager
    async def _held_open(self, phase: str) -> AsyncIterator[None]:
        """Whoever would end the phase is stopped."""
        role = HELD_OPEN.get(phase)
        async with stopped(*(self.stack.instances(role) if role else ())):
            yield

    async def _until_in_phase(self, phase: str, others: set[str]) -> None:
        async def admitted() -> bool:
            return bool(await self._sessions() - others)

        await until(admitted)
        if phase not in ("decode", "relay"):
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
                asked = pb.CancelRequest(request_id=(await self._sessions() - others).pop())
                await other.Cancel(asked)
                if cause == "id twice":
                    await other.Cancel(asked)
                elif cause == "id and rpc":
                    victim.call.cancel()

    async def _sessions(self) -> set[str]:
        held = await audit(self.bus, self.stack.instances("gateway"))
        return {thing.request_id for things in held.values() for thing in things}

    async def _until_free(self, others: set[str], begun: float) -> None:
        """Until nothing is held but what `others` hold."""
        last_held: list[str] = []

        async def free() -> bool:
            found = await audit(self.bus, self.stack.instances())
            held = [
                f"{name}: {one}"
                for name, all_of in found.items()
                for one in all_of
                if one.request_id not in others
            ]
            last_held[:] = held or last_held
            return not held

        with contextlib.suppress(AssertionError):  # its time says the same, and the table goes on
            await until(free, timeout_s=GIVE_UP_S)
        self.free_ms.append((time.perf_counter() - begun) * 1e3)
        if self.free_ms[-1] > FREE_LIMIT_S * 1e3:
            self.slow.append(f"{self.free_ms[-1]:.0f} ms: {last_held[:3]}")

    def ends(self) -> Counter[str]:
        """How the requests of all gateways ended so far."""
        outcomes = ("finished", "cancelled", "expired", "shed", "failed")
        gateways = self.stack.instances("gateway")
        return Counter(
            {
                outcome: count
                for outcome in outcomes
                if (
                    count := round(
                        sum(counted(g, "penstock_requests_total", outcome=outcome) for g in gateways)
                    )
                )
            }
        )

    # ---- on the way to the first token ------------------------------------------------------------

    async def sweep(self) -> None:
        """Long prompts cancelled a little later each time, from before admission to after the first token."""
        measured, wrong, ended = len(self.free_ms), len(self.wrong), self.ends()
        async with connect(self.stack.grpc) as stub:
            whole = await generate(stub, request(random_prompt(LONG_PROMPT), max_tokens=2, ignore_eos=True))
            for turn in range(self.scale.sweep):
                victim = Stream(request(random_prompt(LONG_PROMPT), max_tokens=LONG_OUTPUT, ignore_eos=True))
                call = asyncio.create_task(victim.follow(stub))
                await asyncio.sleep(1.2 * turn / self.scale.sweep * whole.ttft_us / 1e6)
                begun = time.perf_counter()
                if victim.call is not None:
                    victim.call.cancel()
                await call
                await self._until_free(set(), begun)
        counts = self.ends() - ended
        if (
            counts["cancelled"] < self.scale.sweep - 1 or counts["finished"] != 1
        ):  # the first may never come in
            self.wrong.append(f"requests ended as {dict(counts)}")
        verdict = "; ".join(self.wrong[wrong:]) or "as it should"
        self.report.add(
            "sweep to 1.2 x TTFT", "rpc", self.scale.sweep, spread(self.free_ms[measured:]), verdict
        )

    async def stop_string(self) -> None:
        """The detokenizer ends it; decode must hear of that."""
        measured, wrong = len(self.free_ms), len(self.wrong)
        async with connect(self.stack.grpc) as stub:
            for _ in range(self.scale.repeats):
                message = long_request(3)
                message.sampling.stop.append(" ")
                victim = await Stream(message).follow(stub)
                await self._until_free(set(), time.perf_counter())
                if (victim.outcome, victim.answer.finish_reason) != ("finished", "stop"):
                    self.wrong.append(f"ended as {victim.outcome}, {victim.answer.finish_reason}")
        verdict = "; ".join(self.wrong[wrong:]) or "as it should"
        self.report.add("decode", "stop string", self.scale.repeats, spread(self.free_ms[measured:]), verdict)

    # ---- many at once -----------------------------------------------------------------------------

    async def storm(self) -> None:
        """Long streams, dropped together in whatever phase they are."""
        times_ms: list[float] = []
        before = self._footprint()
        for number in range(self.scale.storms):
            async with connect(self.stack.grpc) as stub:
                streams = [
                    Stream(
                        request(
                            f"Story {seed}",
                            max_tokens=DROPPED_OUTPUT,
                            ignore_eos=True,
                            temperature=1.0,
                            seed=seed,
                        )
                    )
                    for seed in range(self.scale.storm_requests)
                ]
                calls = [asyncio.create_task(stream.follow(stub)) for stream in streams]
                await asyncio.sleep(STORM_S)
            begun = time.perf_counter()
            await asyncio.gather(*calls)
            held_before = len(self.free_ms)
            await self._until_free(set(), begun)
            times_ms += self.free_ms[held_before:]
            del self.free_ms[held_before:]
            if number == 0:
                before = self._footprint()  # pools and caches have their size now
        after = self._footprint()
        grown = [
            f"{name} {before[name][0]:.0f} to {size:.0f} MB, {before[name][1]} to {files} files"
            for name, (size, files) in after.items()
            if size > before[name][0] * RESIDENT_SLACK or files > before[name][1] + FILES_SLACK
        ]
        what = f"{self.scale.storm_requests} x {DROPPED_OUTPUT} tokens, dropped after {STORM_S:g} s"
        self.report.add(
            "any", what, self.scale.storms, spread(times_ms), "; ".join(grown) or "memory, files flat"
        )
        self.report.claim(
            f"{what}: nothing held within {STORM_LIMIT_S:g} s, each time",
            spread(times_ms),
            holds=max(times_ms) <= STORM_LIMIT_S * 1e3,
            timed=True,
        )
        self.report.claim("memory and open files stay flat", "; ".join(grown) or "flat", holds=not grown)

    def _footprint(self) -> dict[str, tuple[float, int]]:
        return {row.id: (resident_mb(row.pid), open_files(row.pid)) for row in self.stack.instances()}

    async def everyday(self) -> None:
        """Short streams, a fifth of them dropped at some moment: only those end as cancelled."""
        drawn, ended = random.Random(5), self.ends()
        queue = [
            (number, drawn.random() < 0.2, drawn.random() * 0.1) for number in range(self.scale.everyday)
        ]
        outcomes: Counter[str] = Counter()

        async def client(stub: rpc.InferenceStub) -> None:
            while queue:
                number, drops, after_s = queue.pop()
                stream = Stream(request(f"Day {number}", max_tokens=60, temperature=0.9, seed=number))
                call = asyncio.create_task(stream.follow(stub))
                if drops:
                    await asyncio.wait([call], timeout=after_s)
                    if stream.call is not None:
                        stream.call.cancel()
                await call
                outcomes["dropped" if drops else stream.outcome] += 1

        async with connect(self.stack.grpc) as stub:
            await asyncio.gather(*(client(stub) for _ in range(EVERYDAY_AT_ONCE)))
        await self.stack.until_idle(GIVE_UP_S)
        counts = self.ends() - ended
        alien = {word: count for word, count in outcomes.items() if word not in ("dropped", "finished")}
        self.report.add("everyday", "a fifth dropped", self.scale.everyday, "", f"ended as {dict(counts)}")
        self.report.claim(
            "no request ends as cancelled that its client did not cancel",
            f"{dict(outcomes)}, counted {dict(counts)}",
            holds=not alien and counts["cancelled"] <= outcomes["dropped"],
        )

    async def shutdown(self) -> None:
        """The launcher is told to stop: every stream hears how it ended."""
        async with connect(self.stack.grpc) as stub:
            streams = [
                Stream(request(f"Last {n}", max_tokens=DROPPED_OUTPUT, ignore_eos=True)) for n in range(4)
            ]
            calls = [asyncio.create_task(stream.follow(stub)) for stream in streams]
            await all_started(streams)
            await asyncio.to_thread(self.stack.stop, signal.SIGTERM)
            await asyncio.gather(*calls)
        outcomes = Counter(stream.outcome for stream in streams)
        once = all(stream.answer.ends == 1 for stream in streams)
        self.report.add("decode", "shutdown", len(streams), "", dict(outcomes))
        self.report.claim(
            "a shutdown tells every stream its end, once",
            dict(outcomes),
            holds=once and set(outcomes) <= {"cancelled", "finished"},
        )

    def claim_all(self, baseline_ttft_ms: float, step_ms: float) -> None:
        p99 = spread(self.free_ms)
        steps = spread([value / step_ms for value in self.free_ms], "steps")
        self.report.claim(
            "one terminal event each, neighbours byte-identical", self.wrong or "all", holds=not self.wrong
        )
        self.report.claim(
            f"nothing held within {FREE_LIMIT_S:g} s of a cancel",
            f"{p99} = {steps} of {step_ms:.2f} ms {'; '.join(self.slow)}",
            holds=max(self.free_ms) <= FREE_LIMIT_S * 1e3,
            timed=True,
        )
        self.report.claim(
            "the next request comes at full speed",
            f"TTFT {statistics.median(self.next_ttft_ms):.1f} ms, {baseline_ttft_ms:.1f} ms before",
            holds=statistics.median(self.next_ttft_ms) <= 2 * baseline_ttft_ms,
            timed=True,
        )


def long_request(seed: int) -> pb.GenerateRequest:
    return request("Once upon a time", max_tokens=LONG_OUTPUT, ignore_eos=True, temperature=1.0, seed=seed)


def random_prompt(tokens: int) -> list[int]:
    """New every time, so that no prefix cache has it."""
    return random.choices(range(20, 400), k=tokens)


async def baseline(stack: Stack) -> tuple[float, float]:
    """Median TTFT of a short prompt, median time between two tokens; milliseconds."""
    ttft_ms, gaps_ms = [], []
    async with connect(stack.grpc) as stub:
        for _ in range(9):
            stream = await Stream(request("The next one", max_tokens=40, ignore_eos=True)).follow(stub)
            ttft_ms.append(stream.answer.ttft_us / 1e3)
            gaps_ms += [(b - a) * 1e3 for a, b in pairwise(stream.token_times_s)]
    return statistics.median(ttft_ms), statistics.median(gaps_ms)


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = DrillReport(
        "cancel: every phase, every cause", ("at", "cause", "times", "zero held after p50 / p99 / max", "")
    )
    environ = {"PENSTOCK_DECODE_MAX_SEQUENCES": str(SEATS + NEIGHBOURS)}
    with Stack(*models.options(retriever=True), environ=environ) as stack:
        bus = await stack.connect("drill-audit")
        try:
            ttft_ms, step_ms = await baseline(stack)
            drill = CancelDrill(stack, scale, report, bus)
            async with connect(stack.grpc) as stub:
                drill.undisturbed = await run_streams(stub, drill.neighbour_requests())
            for phase in scale.phases:
                for cause in scale.causes:
                    await drill.cancel_at(phase, cause)
            await drill.stop_string()
            await drill.sweep()
            drill.claim_all(ttft_ms, step_ms)
            await drill.storm()
            await drill.everyday()
        finally:
            await bus.close()
        await drill.shutdown()
    return report
