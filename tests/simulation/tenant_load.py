"""Load by tenants on a simulated fleet: what the sharing among them gives where nobody waits for a core.

Steps take virtual time and everything else takes none, so that gateways, clients and workers never share a
core as they do on one machine: what is left of the time to a first token is computing, the network and lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key
from tests.simulation.client_node import GRPC_PORT, ClientNode
from tests.simulation.edges.grpc_client import MemoryChannel
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of

SEQUENCES = 8
"""The slots of each decode worker."""
DECODES = 2
SLOTS = DECODES * SEQUENCES
WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "prefill-1", "decode-0", "decode-1"]
LIMIT_S = 3600.0
REST_S = 1.0
WARM_CLIENTS, WARM_S = 4, 0.3
"""Engines learn first what steps cost: a fleet that has just begun fills its steps."""
PROMPT_TOKENS = 24
WARM_SEED = 99


@dataclass(frozen=True, slots=True)
class Shape:
    """`ttft_s`: how long a client waits for its first token; what cannot have it by then is shed."""

    output_tokens: int
    ttft_s: float = 60.0


@dataclass(slots=True)
class TimedCall:
    """One call, by the clock of its client."""

    began_s: float
    first_s: float | None = None
    ended_s: float = 0.0
    tokens: int = 0
    end: pb.Terminal | None = None

    @property
    def finished(self) -> bool:
        return self.end is not None and self.end.outcome == pb.OUTCOME_FINISHED

    @property
    def ttft_ms(self) -> float:
        """Of a call that had a token."""
        assert self.first_s is not None
        return 1e3 * (self.first_s - self.began_s)

    def phases_ms(self) -> dict[str, float]:
        """Return where the time to the first token went, as the gateway says it."""
        parts: dict[str, float] = {}
        assert self.end is not None
        for phase in self.end.timeline.phases:
            if phase.start_us + phase.duration_us <= self.end.timeline.ttft_us:
                parts[phase.name] = parts.get(phase.name, 0.0) + phase.duration_us / 1e3
        return parts


@dataclass(slots=True)
class Traffic:
    """The calls of one client; `seconds` until the last of them had its end."""

    calls: list[TimedCall] = field(default_factory=list)
    seconds: float = 0.0

    def finished(self) -> list[TimedCall]:
        return [call for call in self.calls if call.finished]

    def ttfts_ms(self) -> list[float]:
        return [call.ttft_ms for call in self.finished()]

    def tokens(self, within_s: float = float("inf")) -> int:
        """Return the tokens of calls that finished, and ended within so much of their load's time."""
        return sum(call.tokens for call in self.finished() if call.ended_s <= within_s)


Load = Callable[[rpc.InferenceStub, str], Coroutine[Any, Any, Traffic]]
"""(stub, key): what one client does."""


def open_loop(shapes: Sequence[Shape], rate: float, seconds: float, seed: int) -> Load:
    """`rate` requests a second in Poisson order, shapes in turn, whatever comes of them."""

    async def run(stub: rpc.InferenceStub, key: str) -> Traffic:
        loop, drawn = asyncio.get_running_loop(), Random(seed)
        began_s, at_s = loop.time(), 0.0
        calls: list[asyncio.Task[TimedCall]] = []
        while at_s < seconds:
            await asyncio.sleep(max(0.0, began_s + at_s - loop.time()))
            number = len(calls)
            call = _call(stub, key, shapes[number % len(shapes)], 100_000 * seed + number, began_s)
            calls.append(asyncio.ensure_future(call))
            at_s += drawn.expovariate(rate)
        return Traffic(list(await asyncio.gather(*calls)), loop.time() - began_s)

    return run


def closed_loop(shape: Shape, clients: int, seconds: float, seed: int) -> Load:
    """So many clients, each with one request at a time."""

    async def run(stub: rpc.InferenceStub, key: str) -> Traffic:
        loop, traffic = asyncio.get_running_loop(), Traffic()
        began_s = loop.time()

        async def one_client(client: int) -> None:
            number = 0
            while loop.time() - began_s < seconds:
                name = 100_000 * seed + 1000 * client + number
                traffic.calls.append(await _call(stub, key, shape, name, began_s))
                number += 1

        await asyncio.gather(*(one_client(client) for client in range(clients)))
        traffic.seconds = loop.time() - began_s
        return traffic

    return run


async def _call(
    stub: rpc.InferenceStub, key: str, shape: Shape, number: int, load_began_s: float
) -> TimedCall:
    loop = asyncio.get_running_loop()
    call = TimedCall(loop.time())
    message = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[5 + (number * 31 + at * 7) % 200 for at in range(PROMPT_TOKENS)]),
        sampling=pb.Sampling(max_tokens=shape.output_tokens, temperature=0.8, seed=number, ignore_eos=True),
        ttft_deadline_ms=round(1e3 * shape.ttft_s),
    )
    try:
        async for event in stub.Generate(message, metadata=(("authorization", f"Bearer {key}"),)):
            if event.WhichOneof("event") == "text" and event.text.token_ids:
                call.first_s = call.first_s or loop.time()
                call.tokens += len(event.text.token_ids)
            elif event.WhichOneof("event") == "end":
                call.end = event.end
    except grpc.aio.AioRpcError:
        if call.end is None:
            raise
    call.ended_s = loop.time() - load_began_s
    return call


def write_keys(file: Path, tenants: Mapping[str, str]) -> None:
    """Make a file of keys; `tenants` are those of clients, whose names are their keys."""
    keys = [ApiKey(client, tenant, hash_api_key(client)) for client, tenant in tenants.items()]
    file.write_text("\n".join(map(describe_api_key, keys)))


def run_loads(
    seed: int,
    model: Path,
    keys: Path,
    loads: Mapping[str, Load],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Traffic]:
    """Run these loads at once, each by the client of its name, on a fleet of their own."""
    said: dict[str, dict[str, Any]] = {
        "gateway": {"api_keys": str(keys), "max_sessions": 2048, "local_prefill_tokens": 0},
        "decode": {"max_sequences": SEQUENCES},
    }
    for role, more in (settings or {}).items():
        said[role] = {**said.get(role, {}), **more}
    with fleet_of(seed, model, said) as fleet:
        return fleet.world.run(_all_of(fleet, loads), limit_s=LIMIT_S)


async def _all_of(fleet: Fleet, loads: Mapping[str, Load]) -> dict[str, Traffic]:
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    await asyncio.sleep(REST_S)
    warming = closed_loop(Shape(2), WARM_CLIENTS, WARM_S, WARM_SEED)
    await _begin(fleet.client(), warming, next(iter(loads)))
    await asyncio.sleep(REST_S)
    running = {client: _begin(fleet.client(client), load, client) for client, load in loads.items()}
    traffic = {client: await task for client, task in running.items()}
    await asyncio.sleep(REST_S)
    assert await fleet.held(WORKERS) == []
    return traffic


def _begin(client: ClientNode, load: Load, key: str) -> asyncio.Task[Traffic]:
    stub = rpc.InferenceStub(MemoryChannel(f"{GATEWAY}:{GRPC_PORT}"))  # type: ignore[arg-type]  # a stand-in
    return client.start(load(stub, key), f"load-{key}")
