"""Cold start to ready of a small stack, and the time from a client's cancel until nothing is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.micro.cost_rows import CostRow
from services.cli.bench.micro.peer_process import peer_of
from services.cli.bench.stacks.own_stack import DEMO_PLAN, OwnStack, own_stack
from services.cli.fleet.audit import audit_all
from services.cli.fleet.fleet_watch import listening
from shared.bus import Bus
from shared.errors import Unavailable
from shared.messages import Heartbeat

ENGINE_MODULE = "services.cli.bench.micro.engine_start"
ENGINE, READY = "the engine in one process", "cold start to ready"
AUDIT, FREED = "an audit of all", "cancel until nothing is held"
CANCELS = 5
"""The cancels of each stack."""
MOST_STACKS = 1000
FREE_DEADLINE_S = 30.0
"""The longest that something may be held after a cancel."""
CALL_DEADLINE_S = 60.0
PROMPT = "The pipeline of Penstock begins with the tokenizer"
LONG_ANSWER_TOKENS = 1500
"""The tokens of an answer that is cancelled at its beginning."""
NO_PROXY = (("grpc.enable_http_proxy", 0),)


async def measure_stack_life(
    seconds: float, cancels: int = CANCELS, clock: Callable[[], float] = time.perf_counter
) -> list[CostRow]:
    """Start stacks one after another until the time is over, one at least."""
    engines_s: list[float] = []
    ready_s: list[float] = []
    audits_ms: list[float] = []
    freed_ms: list[float] = []
    began_s = clock()
    while not ready_s or (clock() - began_s < seconds and len(ready_s) < MOST_STACKS):
        engines_s.append(await _engine_start_s())
        async with own_stack(DEMO_PLAN) as stack:
            ready_s.append(stack.ready_s)
            for audit_s, free_s in await _cancels_s(stack, cancels):
                audits_ms.append(1e3 * audit_s)
                freed_ms.append(1e3 * free_s)
    return [
        CostRow(ENGINE, "s", tuple(engines_s)),
        CostRow(READY, "s", tuple(ready_s), (ENGINE,)),
        CostRow(AUDIT, "ms", tuple(audits_ms)),
        CostRow(FREED, "ms", tuple(freed_ms), (AUDIT,)),
    ]


async def _engine_start_s() -> float:
    began_s = time.perf_counter()
    async with peer_of(ENGINE_MODULE):
        return time.perf_counter() - began_s


async def _cancels_s(stack: OwnStack, cancels: int) -> list[tuple[float, float]]:
    """Return what an audit takes beside what a cancel takes until an audit finds nothing, of each cancel."""
    address = stack.bus()
    async with (
        listening(address) as (bus, fleet),
        grpc.aio.insecure_channel(stack.address("grpc"), options=NO_PROXY) as channel,
    ):
        await fleet.collect(address.expected)
        beats = [seen.beat for seen in fleet.all()]
        if missing := address.expected - {beat.instance for beat in beats}:
            raise Unavailable(f"the small stack's {', '.join(sorted(missing))} is not heard")
        stub = rpc.InferenceStub(channel)
        taken = []
        for number in range(cancels + 1):
            await _until_free(bus, beats)
            began_s = time.perf_counter()
            await audit_all(bus, beats)
            audit_s = time.perf_counter() - began_s
            await _cancel_one(stub)
            began_s = time.perf_counter()
            await _until_free(bus, beats)
            if number:  # the first one warms up
                taken.append((audit_s, time.perf_counter() - began_s))
    return taken


async def _until_free(bus: Bus, beats: list[Heartbeat]) -> None:
    """Audit again and again until nothing is held. Raises Unavailable where something stays."""
    try:
        async with asyncio.timeout(FREE_DEADLINE_S):
            while not (await audit_all(bus, beats)).nothing_held:
                pass
    except TimeoutError as error:
        raise Unavailable(
            f"the small stack still holds something {FREE_DEADLINE_S:g} s after a cancel"
        ) from error


async def _cancel_one(stub: rpc.InferenceStub) -> None:
    """Cancel an answer as soon as there is a token of it. Raises Unavailable where none comes."""
    sampling = pb.Sampling(temperature=0.0, max_tokens=LONG_ANSWER_TOKENS, ignore_eos=True)
    call = stub.Generate(pb.GenerateRequest(text=PROMPT, sampling=sampling), timeout=CALL_DEADLINE_S)
    try:
        async for event in call:
            if event.WhichOneof("event") == "text":
                return
    except grpc.aio.AioRpcError as error:
        raise Unavailable(f"the small stack does not answer: {error.details()}") from error
    finally:
        call.cancel()
    raise Unavailable("the small stack ended an answer without a token")
