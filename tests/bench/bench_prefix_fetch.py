"""The first token of a call whose prefix lies at a busy prefill worker: fetched by the other one, beside a
fleet that fetches nothing.

    python -m tests.bench.bench_prefix_fetch --model DIR_OR_GGUF [--prefix-tokens N] [--busy-tokens N]
    [--rounds N] [--transport auto|nats|shm]

Two prefill workers, on a bus with users and rights. Each round computes a new prefix, keeps the worker that
has it busy with a long prompt behind that prefix, and then asks for a short one behind it. Each round is held
on both stacks, in turns, which stay up.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.support.client import Answer, connect, generate, request
from tests.support.percentile import percentile
from tests.support.stack import Stack, value_of

WAYS = {"fetched": "4", "never fetched": "0"}
"""Values of `prefix_fetches` in either stack."""
FETCHED = "penstock_prefix_fetched_tokens_total"
QUESTION_TOKENS = 20
BUSY_FOR_S = 0.3
"""The time after which the long prompt is known to be computed, and the short one is asked for."""
TOLD_S = 1.0
"""The time after which gateways know what has been computed."""
WAIT_S = 300.0
VOCABULARY = range(1000, 30_000)


@dataclass(frozen=True)
class Round:
    ttft_ms: float
    busy_ttft_ms: float


def ttft_ms(answer: Answer) -> float:
    assert answer.end is not None, answer.details
    assert answer.outcome == "finished", answer.end
    return float(answer.end.timeline.ttft_us) / 1e3


async def one_round(stub: rpc.InferenceStub, seed: int, options: argparse.Namespace) -> Round:
    chance = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [chance.choice(VOCABULARY) for _ in range(count)]

    async def ask(prompt: list[int]) -> float:
        message = request(prompt, max_tokens=2, ignore_eos=True)
        message.ttft_deadline_ms = message.deadline_ms = round(WAIT_S * 1000)
        return ttft_ms(await generate(stub, message, timeout_s=WAIT_S))

    prefix = ids(options.prefix_tokens)
    await ask(prefix)
    await asyncio.sleep(TOLD_S)
    busy = asyncio.create_task(ask([*prefix, *ids(options.busy_tokens)]))
    await asyncio.sleep(BUSY_FOR_S)
    first_ms = await ask([*prefix, *ids(QUESTION_TOKENS)])
    return Round(first_ms, await busy)


def show(name: str, stack: Stack, rounds: list[Round]) -> None:
    fetched = sum(value_of(each, FETCHED) for each in stack.instances("prefill"))
    firsts, busy = [each.ttft_ms for each in rounds], [each.busy_ttft_ms for each in rounds]
    first = f"{percentile(firsts, 0.5):.0f} / {max(firsts):.0f} ms"
    print(f"{name}: first token p50 / worst {first}, that of the long prompt {percentile(busy, 0.5):.0f} ms")
    print(f"  {fetched:.0f} tokens fetched in {len(rounds)} rounds")


async def measure(stacks: dict[str, Stack], options: argparse.Namespace) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {name: [] for name in stacks}
    for seed in range(options.rounds):
        for name, stack in stacks.items():
            async with connect(stack.grpc) as stub:
                found[name].append(await one_round(stub, seed, options))
    return found


def main(options: argparse.Namespace) -> None:
    with ExitStack() as entered:
        stacks = {
            name: entered.enter_context(
                Stack(
                    *("--model", str(options.model), "--draft", "none", "--retriever", "0"),
                    *("--prefill", "2", "--decode", "1"),
                    environ={
                        "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
                        "PENSTOCK_PREFILL_PREFIX_FETCHES": fetches,
                        "PENSTOCK_PREFILL_KV_TRANSPORT": options.transport,
                    },
                )
            )
            for name, fetches in WAYS.items()
        }
        for name, rounds in asyncio.run(measure(stacks, options)).items():
            show(name, stacks[name], rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--busy-tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", default="auto")
    main(parser.parse_args())
