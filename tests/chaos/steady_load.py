"""Clients that ask without a pause, and what of their answers was not what it is undisturbed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import grpc.aio

from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.chaos.traffic import Stream, run_streams, stream_requests
from tests.support.client import connect
from tests.support.http import call, http_client
from tests.support.stack import Stack

COMPLETION = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


@dataclass(slots=True)
class SteadyLoad:
    """`wrong` tells of each answer that failed or differs, `pauses_s` has the longest of each stream."""

    undisturbed: list[Stream]
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)

    def note(self, who: str, difference: str) -> None:
        self.answers += 1
        if difference:
            self.wrong.append(f"{who}: {difference}")


@asynccontextmanager
async def steady_load(stack: Stack, streams: int, tokens: int, anew: int) -> AsyncIterator[SteadyLoad]:
    """Meanwhile `streams` clients keep their connection, and `anew` of each kind connect for each call, over
    gRPC and over HTTP; each has been answered once, undisturbed, before."""
    enough = asyncio.Event()
    messages = stream_requests(streams, tokens)
    async with connect(stack.grpc) as stub, http_client(stack.http) as client:
        undisturbed = await run_streams(stub, messages)
        load = SteadyLoad(undisturbed)
        model = (await call(client, "/v1/models")).body["data"][0]["id"]
        completion = await call(client, "/v1/completions", {**COMPLETION, "model": model})
        assert completion.status == 200, completion.body

        async def keeps(number: int) -> None:
            while not enough.is_set():
                stream = await Stream(messages[number]).follow(stub)
                load.note("a stream", stream.differs_from(undisturbed[number]))
                load.pauses_s.append(stream.pause_s)

        async def connects(first: int) -> None:
            numbers = itertools.islice(itertools.cycle(range(streams)), first, None)
            while not enough.is_set():
                number = next(numbers)
                own = (("grpc.use_local_subchannel_pool", 1),)
                async with grpc.aio.insecure_channel(stack.grpc, options=own) as channel:
                    stream = await Stream(messages[number]).follow(rpc.InferenceStub(channel))
                load.note("a new gRPC connection", stream.differs_from(undisturbed[number]))

        async def asks_by_http() -> None:
            wanted = completion.body["choices"]
            while not enough.is_set():
                try:
                    async with http_client(stack.http) as fresh:
                        reply = await call(fresh, "/v1/completions", {**COMPLETION, "model": model})
                except (OSError, aiohttp.ClientError) as error:
                    load.note("a new HTTP connection", repr(error))
                else:
                    same = reply.status == 200 and reply.body["choices"] == wanted
                    load.note("a new HTTP connection", "" if same else f"{reply.status} {reply.body}")

        running = [asyncio.create_task(keeps(number)) for number in range(streams)]
        running += [asyncio.create_task(connects(first)) for first in range(anew)]
        running += [asyncio.create_task(asks_by_http()) for _ in range(anew)]
        try:
            yield load
        finally:
            enough.set()
            await asyncio.gather(*running)
