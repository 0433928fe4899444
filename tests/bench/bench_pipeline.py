"""What the pipeline adds: TTFT and ITL through the whole stack over the in-process engine, in one run.

    python -m tests.bench.bench_pipeline [--model DIR] [--requests N] [--prompt-tokens N] [--output-tokens N]

Also: client cancel to zero held, what the stack computes at rest, cold start to ready, a killed worker's way
back to ready, memory of every service (resident, and with what several share counted once).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from services.cli.bench.run.server_watch import children_of, process_cpu_s
from shared.engine import Engine, EngineConfig, SamplingParams
from shared.process.niceness import give_way
from tests.bench.process_cost import pss_mb
from tests.support.client import connect, generate, request
from tests.support.models import target_model
from tests.support.stack import Instance, Stack, audit, resident_mb
from tests.support.wait import until

CANCELS = 10
REST_S, IDLE_S = 8.0, 20.0
"""The time until a stack rests, and the time for which it is then looked at."""
RESTARTED_ROLES = ("decode", "prefill", "tokenizer")
RESTART_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Latency:
    ttft_ms: float
    itl_ms: float


def in_process(engine: Engine, prompt: list[int], output_tokens: int) -> Latency:
    """The engine alone, with all cores: the time to the first token and the mean time between tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    started = time.perf_counter()
    engine.admit("bench", prompt, len(prompt), params)
    times = []
    while engine.has_work:
        drawn = len(engine.step().outputs)
        times += [time.perf_counter()] * drawn
    return Latency((times[0] - started) * 1e3, gap_ms(times))


def gap_ms(times: list[float]) -> float:
    return 1e3 * (times[-1] - times[0]) / (len(times) - 1)


async def piped(stack: Stack, prompt: list[int], output_tokens: int) -> Latency:
    times: list[float] = []
    async with connect(stack.grpc) as stub:
        started = time.perf_counter()
        async for event in stub.Generate(request(prompt, max_tokens=output_tokens, ignore_eos=True)):
            times += [time.perf_counter()] * len(event.text.token_ids)
    return Latency((times[0] - started) * 1e3, gap_ms(times))


async def cancel_to_zero_ms(stack: Stack, prompt: list[int]) -> float:
    """From the client's cancel in mid-stream to the first audit that counts zero everywhere."""
    bus = await stack.connect("bench-audit")
    try:
        async with connect(stack.grpc) as stub:
            call = stub.Generate(request(prompt, max_tokens=400, ignore_eos=True))
            async for event in call:
                if event.text.token_ids:
                    break
            started = time.perf_counter()
            call.cancel()
            while await audit(bus, stack.instances()):
                pass
            return (time.perf_counter() - started) * 1e3
    finally:
        await bus.close()


async def idle_percent(stack: Stack) -> dict[str, float]:
    """Of one core, by process, while nobody asks for anything."""
    launcher = stack.process.pid
    names = {row.pid: row.id for row in stack.instances()} | {launcher: "launcher"}
    pids = [launcher, *children_of(launcher)]
    await asyncio.sleep(REST_S)
    before = {pid: process_cpu_s(pid) for pid in pids}
    await asyncio.sleep(IDLE_S)
    shares = {
        names.get(pid, f"process {pid}"): 100 * (process_cpu_s(pid) - was) / IDLE_S
        for pid, was in before.items()
    }
    return {"all": sum(shares.values()), **shares}


def is_ready(row: Instance) -> bool:
    try:
        with urllib.request.urlopen(f"http://{row.metrics}/ready", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def restart_s(stack: Stack, role: str) -> float:
    """From SIGKILL of the first one of the role to its successor's readiness."""
    (old, *_) = stack.instances(role)

    def is_back() -> bool:
        (row,) = [row for row in stack.instances() if row.id == old.id]
        return row.pid != old.pid and bool(row.metrics) and is_ready(row)

    started = time.perf_counter()
    os.kill(old.pid, signal.SIGKILL)
    await until(is_back, RESTART_TIMEOUT_S)
    return time.perf_counter() - started


async def measure(stack: Stack, options: argparse.Namespace) -> dict[str, object]:
    alone: list[Latency] = []
    through: list[Latency] = []
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, initializer=give_way) as thread:  # as workers do, or it goes before the stack
        config = EngineConfig(model_dir=options.model, prefix_cache=False, threads=0, weight_cache_mb=1 << 15)
        engine = await loop.run_in_executor(thread, Engine, config)
        for turn in range(options.requests):
            # A prompt of its own each time: the prefix cache must not help one side.
            prompt = [(7 * turn + 3 * i) % 300 + 20 for i in range(options.prompt_tokens)]
            alone.append(
                await loop.run_in_executor(thread, in_process, engine, prompt, options.output_tokens)
            )
            through.append(await piped(stack, prompt, options.output_tokens))
    cancels = [await cancel_to_zero_ms(stack, prompt) for _ in range(CANCELS)]
    engine_ttft, stack_ttft = (statistics.median(x.ttft_ms for x in xs) for xs in (alone, through))
    engine_itl, stack_itl = (statistics.median(x.itl_ms for x in xs) for xs in (alone, through))
    return {
        "ttft_ms": {"engine": engine_ttft, "pipeline": stack_ttft, "ratio": stack_ttft / engine_ttft},
        "itl_ms": {"engine": engine_itl, "pipeline": stack_itl, "ratio": stack_itl / engine_itl},
        "cancel_to_zero_ms": {"median": statistics.median(cancels), "max": max(cancels)},
        "resident_mb": {row.id: round(resident_mb(row.pid), 1) for row in stack.instances()},
        "shared_once_mb": {row.id: round(pss_mb(row.pid), 1) for row in stack.instances()},
        "idle_percent": {name: round(share, 2) for name, share in (await idle_percent(stack)).items()},
        # Each once: who ends again soon is started later each time.
        "killed_to_ready_s": {role: await restart_s(stack, role) for role in RESTARTED_ROLES},
    }


async def warmed(options: argparse.Namespace, stack: Stack) -> dict[str, object]:
    async with connect(stack.grpc) as stub:
        await generate(stub, request(list(range(20, 60)), max_tokens=8))
    return await measure(stack, options)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="checkpoint directory; the tests' small one by default")
    parser.add_argument("--requests", type=int, default=15)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--stack-options", default="", help="more options for `penstock up`, space separated")
    options = parser.parse_args()
    options.model = options.model or str(target_model(Path("/tmp/penstock-bench")))
    up = ("--model", options.model, "--corpus", "none", "--retriever", "0", "--draft", "none")
    started = time.perf_counter()
    with Stack(*up, *options.stack_options.split()) as stack:
        ready_s = time.perf_counter() - started
        result = asyncio.run(warmed(options, stack))
    print(json.dumps({"cold_start_to_ready_s": ready_s, **result}, indent=2))


if __name__ == "__main__":
    main()
