"""Measure what resumable streams cost while nothing is lost: CPU of a token, with it over without.

    python -m tests.bench.bench_resumable [--seconds S]

The small stack answers in turns, over gRPC and as server-sent events, streams that can be resumed and streams
that cannot; the CPU is that of the gateway.
"""

from __future__ import annotations

import argparse
import asyncio

import aiohttp

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.bench.micro.token_events import EventLoad
from services.cli.bench.micro.turns import TurnSide, TurnWork, take_turns
from services.cli.bench.stacks.own_stack import DEMO_PLAN, own_stack
from services.cli.bench.stats.bootstrap import paired_ratio
from services.cli.bench.targets.grpc_target import GrpcTarget
from services.cli.bench.targets.openai_target import OpenAiTarget
from services.cli.bench.targets.target import BenchTarget, CallFacts, TargetCall, TargetSampling

EDGES = ("grpc", "http")
LOAD = EventLoad()
SEED = 1


class ResumableGrpc(GrpcTarget):
    def _message(self, call: TargetCall) -> pb.GenerateRequest:
        message = super()._message(call)
        message.resumable = True
        return message


class ResumableHttp(OpenAiTarget):
    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        return await super()._post(path, body, {**headers, "x-penstock-resumable": "true"})


def work_of(target: BenchTarget) -> TurnWork:
    async def answer(call: TargetCall) -> None:
        facts = CallFacts()
        async for _ in target.pieces(call, facts):
            pass
        if facts.completion_tokens != call.max_tokens:
            raise SystemExit(f"an answer has {facts.completion_tokens} tokens instead of {call.max_tokens}")

    async def work(turn: int) -> None:
        await asyncio.gather(*map(answer, LOAD.calls(turn)))

    return work


def target_of(edge: str, address: str, sampling: TargetSampling, *, resumable: bool) -> BenchTarget:
    if edge == "grpc":
        return (ResumableGrpc if resumable else GrpcTarget)(address, sampling, plain=True)
    made = ResumableHttp if resumable else OpenAiTarget
    return made(f"http://{address}", "completions", sampling)


async def measure(seconds: float) -> None:
    async with own_stack(DEMO_PLAN) as stack:
        asking = GrpcTarget(stack.address("grpc"), TargetSampling())
        sampling = TargetSampling(model=await asking.find_model(), ignore_eos=True)
        await asking.close()
        for edge in EDGES:
            targets = {
                resumable: target_of(edge, stack.address(edge), sampling, resumable=resumable)
                for resumable in (False, True)
            }
            sides = {
                str(resumable): TurnSide(work_of(target), (stack.pids["gateway-0"],), here=False)
                for resumable, target in targets.items()
            }
            costs = await take_turns(sides, seconds)
            for target in targets.values():
                await target.close()
            plain, kept = ([turn.cpu_s for turn in costs[str(resumable)]] for resumable in (False, True))
            ratio, low, high = paired_ratio(plain, kept, SEED)
            us = [1e6 * sum(side) / len(side) / LOAD.total_tokens for side in (plain, kept)]
            print(
                f"{edge:5} {us[0]:6.1f} → {us[1]:6.1f} µs a token, "
                f"{ratio:.3f} ({low:.3f} to {high:.3f}), {len(plain)} pairs",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the two measurements")
    asyncio.run(measure(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
