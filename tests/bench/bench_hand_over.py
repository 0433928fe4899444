"""The pauses of streams whose decode worker drains under load: handed over, beside waiting and computing
again.

    python -m tests.bench.bench_hand_over [--model DIR] [--streams N] [--tokens N] [--prompt-tokens N]
    [--rounds N]

Two decode workers and N streams; the one with most of them, half at least, is told to drain in mid-stream. A
pause is the longest time from text to text of a stream of that worker from then on. The other way is what a
drain does with `hand_overs = 0`: streams have `drain_timeout_s` to end, and are then computed again at the
other worker. Each round is held on both, in turns, on stacks that stay up; answers are compared with those of
streams that nothing disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.messages import Drain
from tests.support.client import connect
from tests.support.data import REPOSITORY
from tests.support.percentile import percentile
from tests.support.stack import Instance, Stack
from tests.support.wait import until

DRAIN_TIMEOUT_S = 2
"""The drain timeout without hand-over: streams are longer, so that each is computed again."""
WAYS = {
    "handed over": {"PENSTOCK_DECODE_DRAIN_TIMEOUT_S": "30"},
    "waited for, then computed again": {
        "PENSTOCK_DECODE_HAND_OVERS": "0",
        "PENSTOCK_DECODE_DRAIN_TIMEOUT_S": str(DRAIN_TIMEOUT_S),
    },
}
WAIT_S = 120.0
MODEL = REPOSITORY / "shared" / "demo" / "models" / "target"


@dataclass
class Watched:
    """Hold what one stream has brought, and when, on the monotonic clock."""

    ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    replacements: int = 0

    def pause_s(self, from_s: float) -> float:
        """The longest time from text to text that ended after `from_s`."""
        gaps = zip(self.times_s, self.times_s[1:], strict=False)
        return max((later - earlier for earlier, later in gaps if later > from_s), default=0.0)


def requests(count: int, prompt_tokens: int, tokens: int) -> list[pb.GenerateRequest]:
    return [
        pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=[5 + (seed * 31 + at * 7) % 200 for at in range(prompt_tokens)]),
            sampling=pb.Sampling(max_tokens=tokens, temperature=0.8, seed=seed, ignore_eos=True),
        )
        for seed in range(count)
    ]


async def watch(stub: rpc.InferenceStub, message: pb.GenerateRequest, watched: Watched) -> None:
    async for event in stub.Generate(message, timeout=WAIT_S):
        kind = event.WhichOneof("event")
        if kind == "text" and event.text.token_ids:
            watched.ids += event.text.token_ids
            watched.times_s.append(time.monotonic())
        elif kind == "end":
            watched.replacements = event.end.usage.replacements


@dataclass
class Round:
    """`left_s`: how long the worker took to leave."""

    pauses_s: list[float]
    left_s: float
    replacements: int
    ids: list[list[int]]


async def busiest(stack: Stack) -> Instance:
    """The decode worker with most of the streams: they begin where the KV of the round before lies."""
    held = await stack.holdings()
    return max(stack.instances("decode"), key=lambda decode: len(held.get(decode.id, ())))


async def one_round(stack: Stack, messages: Sequence[pb.GenerateRequest], *, drains: bool) -> Round:
    bus = await stack.connect("bench-hand-over")
    try:
        async with connect(stack.grpc) as stub:
            watched = [Watched() for _ in messages]
            calls = [
                asyncio.create_task(watch(stub, message, each))
                for message, each in zip(messages, watched, strict=True)
            ]
            await until(lambda: all(len(each.ids) > 8 for each in watched), timeout_s=WAIT_S)
            begun_s, left_s = time.monotonic(), 0.0
            if drains:
                leaver = await busiest(stack)
                await bus.ask(inbox("decode", leaver.id), Drain(), bus.envelope(), Deadline.after(10))
                await until(lambda: not Path(f"/proc/{leaver.pid}").exists(), timeout_s=WAIT_S)
                left_s = time.monotonic() - begun_s
            await asyncio.gather(*calls)
            if drains:
                await until(lambda: leaver not in stack.instances("decode"), timeout_s=WAIT_S)
    finally:
        await bus.close()
    pauses = [each.pause_s(begun_s) for each in watched]
    return Round(pauses, left_s, sum(each.replacements for each in watched), [each.ids for each in watched])


def show(name: str, rounds: Sequence[Round], expected: Sequence[list[int]], half: int) -> None:
    """The pauses of the streams that were at the worker: the longer half of each round."""
    pauses = [1e3 * pause for each in rounds for pause in sorted(each.pauses_s)[-half:]]
    changed = sum(ids != want for each in rounds for ids, want in zip(each.ids, expected, strict=True))
    line = " / ".join(f"{percentile(pauses, share):.0f}" for share in (0.5, 0.99, 1.0))
    left = ", ".join(f"{each.left_s:.1f}" for each in rounds)
    again = sum(each.replacements for each in rounds)
    print(f"{name}: pause p50 / p99 / worst {line} ms; left after {left} s")
    print(f"  {again} computed again, {changed} changed")


async def main(model: Path, streams: int, tokens: int, prompt_tokens: int, rounds: int) -> None:
    messages = requests(streams, prompt_tokens, tokens)
    with ExitStack() as stacks:
        running = {
            name: stacks.enter_context(
                Stack("--model", str(model), "--decode", "2", "--retriever", "0", environ=environ)
            )
            for name, environ in WAYS.items()
        }
        quiet = [await one_round(stack, messages, drains=False) for stack in running.values()]
        expected = quiet[0].ids
        show("undisturbed", quiet, expected, streams // 2)
        found: dict[str, list[Round]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, stack in running.items():
                found[name].append(await one_round(stack, messages, drains=True))
    for name, each in found.items():
        show(name, each, expected, streams // 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--prompt-tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(main(**vars(parser.parse_args())))
