"""Servers that have every answer ready and only write it: `python -m …micro.event_floors KIND`.

They greet with their address. The events are as large as those of a small model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc.aio
import uvloop
from aiohttp import web

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.micro.peer_process import greet, hear_nothing, until_stdin_ends
from shared.http2.grpc_server import GrpcServer
from shared.http2.limits import ServerLimits

GRPC, SSE = "grpc.aio that only writes", "aiohttp that only writes"
HTTP2 = "shared.http2 that only writes"
MODEL = "ready"
TEXT = " once"
TOKEN_ID = 400
END_GRACE_S = 1.0


class ReadyAnswers(rpc.InferenceServicer):
    """Answer every call with as many tokens as it may have, an event each."""

    async def Generate(  # noqa: N802 - gRPC's name
        self,
        request: pb.GenerateRequest,
        call: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateEvent],
    ) -> None:
        prompt_tokens, tokens = len(request.token_ids.ids), request.sampling.max_tokens
        for position in range(prompt_tokens, prompt_tokens + tokens):
            delta = pb.TextDelta(text=TEXT, token_ids=[TOKEN_ID], position=position)
            await call.write(pb.GenerateEvent(text=delta))
        end = pb.Terminal(outcome=pb.OUTCOME_FINISHED, usage=pb.Usage(completion_tokens=tokens))
        await call.write(pb.GenerateEvent(end=end))


async def write_grpc() -> None:
    await _serve(grpc.aio.server())


async def write_http2() -> None:
    await _serve(GrpcServer(ServerLimits(max_calls=10_000)))


async def _serve(server: Any) -> None:
    rpc.add_InferenceServicer_to_server(ReadyAnswers(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    greet(f"127.0.0.1:{port}")
    await until_stdin_ends(hear_nothing)
    await server.stop(END_GRACE_S)


async def write_sse() -> None:
    application = web.Application()
    application.router.add_post("/v1/completions", _answer_completion)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=END_GRACE_S)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    greet(f"{host}:{port}")
    await until_stdin_ends(hear_nothing)
    await runner.cleanup()


async def _answer_completion(request: web.Request) -> web.StreamResponse:
    tokens = int((await request.json())["max_tokens"])
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    event = _event(choices=[{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": None}])
    for _ in range(tokens):
        await response.write(event)
    await response.write(_event(choices=[], usage={"completion_tokens": tokens}) + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _event(**fields: object) -> bytes:
    head = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 0, "model": MODEL}
    return b"data: %b\n\n" % json.dumps(head | fields).encode()


KINDS = {GRPC: write_grpc, HTTP2: write_http2, SSE: write_sse}

if __name__ == "__main__":
    uvloop.run(KINDS[sys.argv[1]]())
