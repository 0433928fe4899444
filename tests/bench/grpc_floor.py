"""gRPC's own cost: a server of grpc.aio that has every answer ready and does nothing but write it.

    python -m tests.bench.grpc_floor

It prints its address and serves until it is ended. The events are as large as those of the tiny model.
"""

from __future__ import annotations

import grpc.aio
import uvloop

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc

TEXT = " once"
TOKEN_ID = 400


class ReadyAnswers(rpc.InferenceServicer):
    async def Generate(  # noqa: N802 - gRPC's name
        self,
        request: pb.GenerateRequest,
        call: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateEvent],
    ) -> None:
        prompt_tokens = len(request.token_ids.ids)
        for position in range(prompt_tokens, prompt_tokens + request.sampling.max_tokens):
            delta = pb.TextDelta(text=TEXT, token_ids=[TOKEN_ID], position=position)
            await call.write(pb.GenerateEvent(text=delta))
        await call.write(pb.GenerateEvent(end=pb.Terminal(outcome=pb.OUTCOME_FINISHED)))


async def serve() -> None:
    server = grpc.aio.server()
    rpc.add_InferenceServicer_to_server(ReadyAnswers(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve())
