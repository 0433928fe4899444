"""Many requests given up at once, or each at its own moment."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter

from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.chaos.report import DrillReport, spread
from tests.chaos.stack_watch import GIVE_UP_S, StackWatch
from tests.chaos.traffic import Stream, all_started
from tests.support.client import connect, request
from tests.support.stack import Stack

STORM_LIMIT_S = 2.0
DROPPED_OUTPUT = 10_000
STORM_S = 0.5
EVERYDAY_AT_ONCE = 12
RESIDENT_SLACK = 1.1
"""A gateway wanders between 71 and 75 MB in 36 storms, without growing."""
FILES_SLACK = 8


async def storm(watch: StackWatch, report: DrillReport, times: int, requests: int) -> None:
    """Long streams, dropped together in whatever phase they are."""
    times_ms: list[float] = []
    before = watch.footprint()
    for number in range(times):
        async with connect(watch.stack.grpc) as stub:
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
                for seed in range(requests)
            ]
            calls = [asyncio.create_task(stream.follow(stub)) for stream in streams]
            await asyncio.sleep(STORM_S)
        begun = time.perf_counter()
        await asyncio.gather(*calls)
        times_ms.append(await watch.free_ms(set(), begun))
        if number == 0:
            before = watch.footprint()  # pools and caches have their size now
    after = watch.footprint()
    grown = [
        f"{name} {before[name][0]:.0f} to {size:.0f} MB, {before[name][1]} to {files} files"
        for name, (size, files) in after.items()
        if size > before[name][0] * RESIDENT_SLACK or files > before[name][1] + FILES_SLACK
    ]
    what = f"{requests} x {DROPPED_OUTPUT} tokens, dropped after {STORM_S:g} s"
    report.add("any", what, times, spread(times_ms), "; ".join(grown) or "memory, files flat")
    report.claim(
        f"{what}: nothing held within {STORM_LIMIT_S:g} s, each time",
        spread(times_ms),
        holds=max(times_ms) <= STORM_LIMIT_S * 1e3,
        timed=True,
    )
    report.claim("memory and open files stay flat", "; ".join(grown) or "flat", holds=not grown)


async def everyday(watch: StackWatch, report: DrillReport, requests: int) -> None:
    """Short streams, a fifth of them dropped at some moment: only those end as cancelled."""
    drawn, ended = random.Random(5), watch.ends()
    queue = [(number, drawn.random() < 0.2, drawn.random() * 0.1) for number in range(requests)]
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

    async with connect(watch.stack.grpc) as stub:
        await asyncio.gather(*(client(stub) for _ in range(EVERYDAY_AT_ONCE)))
    await watch.stack.until_idle(GIVE_UP_S)
    counts = watch.ends() - ended
    alien = {word: count for word, count in outcomes.items() if word not in ("dropped", "finished")}
    report.add("everyday", "a fifth dropped", requests, "", f"ended as {dict(counts)}")
    report.claim(
        "no request ends as cancelled that its client did not cancel",
        f"{dict(outcomes)}, counted {dict(counts)}",
        holds=not alien and counts["cancelled"] <= outcomes["dropped"],
    )


async def shutdown(stack: Stack, report: DrillReport) -> None:
    """The launcher is told to stop: every stream hears how it ended."""
    async with connect(stack.grpc) as stub:
        streams = [Stream(request(f"Last {n}", max_tokens=DROPPED_OUTPUT, ignore_eos=True)) for n in range(4)]
        calls = [asyncio.create_task(stream.follow(stub)) for stream in streams]
        await all_started(streams)
        await asyncio.to_thread(stack.stop, signal.SIGTERM)
        await asyncio.gather(*calls)
    outcomes = Counter(stream.outcome for stream in streams)
    once = all(stream.answer.ends == 1 for stream in streams)
    report.add("decode", "shutdown", len(streams), "", dict(outcomes))
    report.claim(
        "a shutdown tells every stream its end, once",
        dict(outcomes),
        holds=once and set(outcomes) <= {"cancelled", "finished"},
    )
