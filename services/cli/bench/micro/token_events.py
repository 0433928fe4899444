"""CPU of the gateway for a token that it writes as an event, over that of a server that only writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from services.cli.bench.micro.cost_rows import CostRow, cost_rows_of
from services.cli.bench.micro.event_floors import GRPC, MODEL, SSE
from services.cli.bench.micro.peer_process import peer_of
from services.cli.bench.micro.turns import TurnSide, TurnWork, take_turns
from services.cli.bench.stacks.own_stack import DEMO_PLAN, own_stack
from services.cli.bench.targets.grpc_target import GrpcTarget
from services.cli.bench.targets.openai_target import OpenAiTarget
from services.cli.bench.targets.target import BenchTarget, CallFacts, TargetCall, TargetSampling
from shared.errors import Unavailable

FLOORS_MODULE = "services.cli.bench.micro.event_floors"
GATEWAY_GRPC, GATEWAY_SSE = "the gateway, gRPC", "the gateway, SSE"
FLOORS = {GATEWAY_GRPC: (GRPC,), GATEWAY_SSE: (SSE,)}


@dataclass(frozen=True, slots=True)
class EventLoad:
    """The answers of one turn: so many at a time, of so many tokens each."""

    streams: int = 16
    tokens: int = 128

    @property
    def total_tokens(self) -> int:
        return self.streams * self.tokens

    def calls(self, turn: int) -> Iterator[TargetCall]:
        """Yield calls whose prompts nobody has asked before, so that no cache answers them."""
        for stream in range(self.streams):
            yield TargetCall((("user", f"{turn} and {stream} are numbers of"),), self.tokens)


DEFAULT_EVENT_LOAD = EventLoad()


async def measure_token_events(seconds: float, load: EventLoad = DEFAULT_EVENT_LOAD) -> list[CostRow]:
    """Return the CPU time of a token. Raises Unavailable where the small stack does not start."""
    async with AsyncExitStack() as stack:
        sides = {}
        for name in (GRPC, SSE):
            peer = await stack.enter_async_context(peer_of(FLOORS_MODULE, name))
            work = await _work(peer.greeting, name == SSE, MODEL, load, stack)
            sides[name] = TurnSide(work, (peer.pid,), here=False)
        small = await stack.enter_async_context(own_stack(DEMO_PLAN))
        gateway = (small.pids["gateway-0"],)
        for name, edge in ((GATEWAY_GRPC, "grpc"), (GATEWAY_SSE, "http")):
            work = await _work(small.address(edge), edge == "http", "", load, stack)
            sides[name] = TurnSide(work, gateway, here=False)
        costs = await take_turns(sides, seconds)
    return cost_rows_of(costs, FLOORS, {"CPU µs a token": lambda turn: 1e6 * turn.cpu_s / load.total_tokens})


async def _work(address: str, is_http: bool, model: str, load: EventLoad, stack: AsyncExitStack) -> TurnWork:
    target = await _target(address, is_http, TargetSampling(model=model, ignore_eos=True), stack)

    async def answer(call: TargetCall) -> None:
        facts = CallFacts()
        async for _ in target.pieces(call, facts):
            pass
        if facts.completion_tokens != call.max_tokens:
            raise Unavailable(
                f"{address} answered with {facts.completion_tokens} tokens instead of {call.max_tokens}"
            )

    async def work(turn: int) -> None:
        await asyncio.gather(*map(answer, load.calls(turn)))

    return work


async def _target(
    address: str, is_http: bool, sampling: TargetSampling, stack: AsyncExitStack
) -> BenchTarget:
    """Return a client that sends prompts as they are. A server over HTTP wants the model's name in them."""
    if not is_http:
        grpc_target = GrpcTarget(address, sampling, plain=True)
        stack.push_async_callback(grpc_target.close)
        return grpc_target
    url = f"http://{address}"
    if not sampling.model:
        asking = OpenAiTarget(url, "completions", sampling)
        try:
            sampling = TargetSampling(model=await asking.find_model(), ignore_eos=sampling.ignore_eos)
        finally:
            await asking.close()
    http_target = OpenAiTarget(url, "completions", sampling)
    stack.push_async_callback(http_target.close)
    return http_target
