"""The streams of a decode worker that is short of KV blocks while another has room: handed over, beside
giving way and being computed again.

    python -m tests.bench.bench_rebalancing [--model DIR] [--streams N] [--tokens N] [--prompt-tokens N]
    [--blocks N] [--rounds N]

All streams begin at one worker, whose pool is too small for what they come to; then a second worker is added
(`penstock scale decode=2`), which nothing new is routed to. Each round is held with hand-overs and without,
in turns; answers are compared with those of a worker with room for all. Times from text to text are those
after the second worker is there; a pause is the longest of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from tests.bench.bench_hand_over import MODEL, WAIT_S, Watched, requests, watch
from tests.support.client import connect
from tests.support.data import REPOSITORY
from tests.support.percentile import percentile
from tests.support.stack import Stack
from tests.support.wait import until

WAYS = {"handed over": "4", "without": "0"}
ROOMY_BLOCKS = 4096


@dataclass
class Round:
    gaps_s: list[float]
    pauses_s: list[float]
    took_s: float
    preemptions: int
    moved: int
    ids: list[list[int]]


def environ_of(blocks: int, hand_overs: str) -> dict[str, str]:
    return {
        "PENSTOCK_DECODE_KV_BLOCKS": str(blocks),
        "PENSTOCK_DECODE_HAND_OVERS": hand_overs,
        "PENSTOCK_DECODE_MAX_SEQUENCES": "64",
        "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
    }


def sample(stack: Stack, name: str, label: str = "") -> int:
    """The sum over the decode workers of a counter's samples."""
    found = 0.0
    for instance in stack.instances("decode"):
        with urllib.request.urlopen(f"http://{instance.metrics}/metrics", timeout=10) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(name) and label in line:
                    found += float(line.rpartition(" ")[2])
    return round(found)


async def add_worker(stack: Stack) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "scale", "decode=2", "--state-dir", str(stack.state_dir)),
        cwd=REPOSITORY,
        env=stack.environ,
        stdout=subprocess.DEVNULL,
    )
    assert await process.wait() == 0


async def one_round(stack: Stack, messages: Sequence[pb.GenerateRequest], *, adds: bool) -> Round:
    loop = asyncio.get_running_loop()
    async with connect(stack.grpc) as stub:
        watched = [Watched() for _ in messages]
        begun_s = loop.time()
        calls = [
            asyncio.create_task(watch(stub, message, each))
            for message, each in zip(messages, watched, strict=True)
        ]
        await until(lambda: all(each.ids for each in watched), timeout_s=WAIT_S)
        if adds:
            await add_worker(stack)
        from_s = loop.time()
        await asyncio.gather(*calls)
        took_s = loop.time() - begun_s
    gaps = [
        later - earlier
        for each in watched
        for earlier, later in zip(each.times_s, each.times_s[1:], strict=False)
        if later > from_s
    ]
    return Round(
        gaps,
        [each.pause_s(from_s) for each in watched],
        took_s,
        sample(stack, "penstock_preemptions_total"),
        sample(stack, "penstock_hand_overs_total", 'outcome="handed_over"'),
        [each.ids for each in watched],
    )


def show(name: str, rounds: Sequence[Round], expected: Sequence[list[int]]) -> None:
    gaps = [1e3 * gap for each in rounds for gap in each.gaps_s]
    pauses = [1e3 * pause for each in rounds for pause in each.pauses_s]
    changed = sum(ids != want for each in rounds for ids, want in zip(each.ids, expected, strict=True))
    of_gaps = " / ".join(f"{percentile(gaps, share):.1f}" for share in (0.5, 0.99, 0.999))
    of_pauses = " / ".join(f"{percentile(pauses, share):.0f}" for share in (0.5, 0.99, 1.0))
    took = ", ".join(f"{each.took_s:.1f}" for each in rounds)
    print(f"{name}: from text to text p50 / p99 / p99.9 {of_gaps} ms; pause p50 / p99 / worst {of_pauses} ms")
    print(
        f"  {sum(each.preemptions for each in rounds)} gave way, {sum(each.moved for each in rounds)} moved, "
        f"{changed} changed; a round took {took} s"
    )


async def main(model: Path, streams: int, tokens: int, prompt_tokens: int, blocks: int, rounds: int) -> None:
    messages = requests(streams, prompt_tokens, tokens)
    options = ("--model", str(model), "--retriever", "0")
    with Stack(*options, environ=environ_of(ROOMY_BLOCKS, "0")) as stack:
        quiet = await one_round(stack, messages, adds=False)
    show("one worker with room for all", [quiet], quiet.ids)
    found: dict[str, list[Round]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, hand_overs in WAYS.items():
            with Stack(*options, environ=environ_of(blocks, hand_overs)) as stack:
                found[name].append(await one_round(stack, messages, adds=True))
    for name, each in found.items():
        show(name, each, quiet.ids)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--prompt-tokens", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    asyncio.run(main(**vars(parser.parse_args())))
