"""Crash-exact: whatever dies, hangs or is cut off, streams go on byte for byte (design §12).

20 live sampled streams with penalties, stop strings, logprobs, grammars and drafts. What disturbs them comes
when they have just been sent ("start": tokenized, placed, computed, transferred) or in mid-stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from shared.actor.lease import LEASE_S
from shared.bus.nats_server import NatsServer
from tests.chaos.cable import Cable
from tests.chaos.report import DrillReport, spread
from tests.chaos.traffic import Stream, all_started, differences, run_streams, stream_requests
from tests.chaos.world import (
    Models,
    counted,
    drill_stack,
    held_for,
    kill,
    nats_pid,
    stopped,
    until_restarted,
    until_serving,
)
from tests.support.client import connect
from tests.support.percentile import percentile
from tests.support.stack import Instance, Stack

ROLES = ("decode", "prefill", "detokenizer", "tokenizer", "speculator")
SOON_S = 0.03
"""The time after the calls: some are at the tokenizer, some in prefill's queue, some on their way to
decode."""
IDLE_LIMIT_S = 30.0
PAUSE_LIMIT_S = 1.5
ROOM = {"PENSTOCK_DECODE_MAX_SEQUENCES": "64"}
"""A stream that is routed anew shall not have to wait for a slot."""
DECODE_PREFILLS = {"PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "512"}
"""Prompts are computed where their streams run, if nobody is hurt by it: most of 20 sent at once are not."""
LATE_IDLE_S = 3.0

Disturb = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of the drill is held: `stops_s` are the lengths of SIGSTOP."""

    streams: int
    tokens: int
    roles: tuple[str, ...]
    stops_s: tuple[float, ...]
    cut_s: float
    moments: tuple[str, ...]


FULL = Scale(20, 1200, ROLES, (3.0, 30.0), 3.0, ("start", "stream"))
SHORT = Scale(6, 150, ("decode", "prefill", "detokenizer"), (), 0.0, ("stream",))
LOCAL = Scale(20, 1200, ("decode", "detokenizer"), (3.0,), 0.0, ("start", "stream"))


class CrashDrill:
    """`undisturbed` is what the same requests answered when nothing happened."""

    def __init__(self, stack: Stack, scale: Scale, report: DrillReport) -> None:
        self._stack = stack
        self._scale = scale
        self._report = report
        self._undisturbed: list[Stream] = []
        self._kill_pauses_s: list[float] = []

    async def disturb(self, what: str, whom: str, moment: str, disturbance: Disturb) -> list[str]:
        """Streams while `disturbance` happens; how they differ from undisturbed ones."""
        messages = stream_requests(self._scale.streams, self._scale.tokens)
        async with connect(self._stack.grpc) as stub:
            if not self._undisturbed:
                self._undisturbed = await run_streams(stub, messages)
            streams = [Stream(message) for message in messages]
            calls = [asyncio.create_task(stream.follow(stub)) for stream in streams]
            await (asyncio.sleep(SOON_S) if moment == "start" else all_started(streams))
            await disturbance()
            await asyncio.gather(*calls)
        wrong = differences(streams, self._undisturbed)
        idle_s = await held_for(self._stack, IDLE_LIMIT_S)
        pauses_s = [stream.pause_s for stream in streams]
        if what == "kill -9" and moment == "stream":
            self._kill_pauses_s += pauses_s
        replaced = sum(s.answer.end.usage.replacements for s in streams if s.answer.end is not None)
        same = f"{len(streams) - len(wrong)}/{len(streams)}"
        self._report.add(
            what, whom, moment, same, replaced, spread([1e3 * s for s in pauses_s]), f"{idle_s:.1f} s"
        )
        if wrong:
            self._report.claim(f"streams are exact: {what} {whom} at {moment}", wrong[0], holds=False)
        return wrong

    def claim_pauses(self) -> None:
        p99_s = percentile(self._kill_pauses_s, 0.99)
        self._report.claim(
            f"a kill -9 in mid-stream pauses streams {PAUSE_LIMIT_S:g} s at most (p99)",
            spread([1e3 * s for s in self._kill_pauses_s]),
            holds=p99_s <= PAUSE_LIMIT_S,
            timed=True,
        )

    # ---- what happens -------------------------------------------------------------------------------

    async def kill(self, role: str, moment: str) -> None:
        victim = self._stack.instances(role)[0]

        async def strike() -> None:
            kill(victim)

        await self.disturb("kill -9", role, moment, strike)
        await until_restarted(self._stack, victim)
        await until_serving(self._stack)

    async def stop(self, role: str, moment: str, for_s: float) -> None:
        victims = self._stack.instances(role)[:1]
        await self.disturb(f"SIGSTOP {for_s:g} s", role, moment, lambda: stopped_for(victims, for_s))
        await until_serving(self._stack)

    async def role_gone(self, role: str, for_s: float) -> None:
        victims = self._stack.instances(role)
        await self.disturb(f"all gone {for_s:g} s", role, "stream", lambda: stopped_for(victims, for_s))
        await until_serving(self._stack)

    async def two_roles_in_turn(self, for_s: float) -> None:
        """The second one vanishes while the first is missing, and is missing longer."""

        async def vanish() -> None:
            async with stopped(*self._stack.instances("decode")):
                await asyncio.sleep(for_s / 2)
                second = asyncio.create_task(stopped_for(self._stack.instances("tokenizer"), for_s))
                third = asyncio.create_task(stopped_for(self._stack.instances("prefill"), for_s))
                await asyncio.sleep(for_s / 2)
            await asyncio.gather(second, third)

        await self.disturb(f"gone {for_s:g} s in turn", "decode, prefill", "stream", vanish)
        await until_serving(self._stack)

    async def kill_nats(self, moment: str) -> None:
        async def strike() -> None:
            os.kill(nats_pid(self._stack), signal.SIGKILL)

        await self.disturb("kill -9", "nats-server", moment, strike)
        await until_serving(self._stack)

    async def cut(self, cable: Cable, role: str, moment: str, for_s: float) -> None:
        victim = self._stack.instances(role)[0]

        async def pull() -> None:
            cable.pull(victim.id)
            await asyncio.sleep(for_s)
            cable.plug_in(victim.id)

        await self.disturb(f"cut off {for_s:g} s", role, moment, pull)
        await until_serving(self._stack)

    async def kill_gateway(self) -> None:
        """Its streams break; what they held is free within the lease."""
        messages = stream_requests(self._scale.streams, self._scale.tokens * 4)
        gateway = self._stack.instances("gateway")[0]
        async with connect(self._stack.grpc) as stub:
            streams = [Stream(message) for message in messages]
            calls = [asyncio.create_task(stream.follow(stub)) for stream in streams]
            await all_started(streams)
            kill(gateway)
            await asyncio.gather(*calls)
        await until_restarted(self._stack, gateway)
        idle_s = await held_for(self._stack, LEASE_S + IDLE_LIMIT_S)
        self._report.add("kill -9", "gateway", "stream", "its streams break", "", "", f"{idle_s:.1f} s")
        limit_s = LEASE_S + LATE_IDLE_S
        self._report.claim(
            f"a killed gateway's resources are free within the lease ({LEASE_S:g} s)",
            f"{idle_s:.1f} s",
            holds=idle_s <= limit_s,
            timed=True,
        )


async def stopped_for(victims: Sequence[Instance], for_s: float) -> None:
    async with stopped(*victims):
        await asyncio.sleep(for_s)


@contextlib.asynccontextmanager
async def cabled_stack(models: Models) -> AsyncIterator[tuple[Stack, Cable]]:
    """A stack whose instances reach their nats-server through a cable."""
    server = NatsServer()
    await server.start()
    try:
        async with Cable(server.url).laid() as cable:
            stack = drill_stack(models, "--nats-url", cable.url, environ=ROOM)
            await asyncio.to_thread(stack.__enter__)  # the cable needs this loop meanwhile
            try:
                yield stack, cable
            finally:
                await asyncio.to_thread(stack.stop)
    finally:
        await server.stop()


def new_report(scale: Scale) -> DrillReport:
    return DrillReport(
        f"crash: {scale.streams} sampled streams of {scale.tokens} tokens",
        (
            "what",
            "whom",
            "at",
            "byte-identical",
            "replaced",
            "longest pause p50 / p99 / max",
            "zero held after",
        ),
    )


async def hold_on(stack: Stack, scale: Scale, report: DrillReport) -> None:
    drill = CrashDrill(stack, scale, report)
    for moment in scale.moments:
        for role in scale.roles:
            await drill.kill(role, moment)
            for stop_s in scale.stops_s:
                await drill.stop(role, moment, stop_s)
        await drill.kill_nats(moment)
    if scale is FULL:
        for role in ("decode", "prefill", "detokenizer"):
            await drill.role_gone(role, 5.0)
        await drill.two_roles_in_turn(4.0)
        await drill.kill_gateway()
    drill.claim_pauses()
    exact = [row for row in report.rows if row[3] == f"{scale.streams}/{scale.streams}"]
    report.claim("streams are exact whatever dies", f"in {len(exact)} drills", holds=bool(exact))


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report(scale)
    with drill_stack(models, environ=ROOM) as stack:
        await hold_on(stack, scale, report)
    async with cabled_stack(models) as (stack, cable):
        drill = CrashDrill(stack, scale, report)
        for moment in scale.moments:
            for role in scale.roles:
                await drill.cut(cable, role, moment, scale.cut_s)
    with drill_stack(models, environ={**ROOM, **DECODE_PREFILLS}) as stack:
        await hold_on(stack, LOCAL, report)
        local = counted(stack.instances("gateway")[0], "penstock_routing_decisions_total", path="local")
        report.claim("decode workers computed prompts of their own", f"{local:g}", holds=local > 0)
    return report
