"""A real gRPC server in a gateway's place, that streams what a test says."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from protos.penstock.v1 import inference_pb2 as pb

METHOD = "penstock.v1.Inference"

Context = grpc.ServicerContext
Script = Callable[[pb.GenerateRequest, Context], Iterator[pb.GenerateEvent]]

TIMELINE = pb.Timeline(
    ttft_us=3000,
    total_us=10000,
    phases=[
        pb.Phase(name="prefill.compute", start_us=1000, duration_us=2000),
        pb.Phase(name="gateway.admit", start_us=0, duration_us=1000),
        pb.Phase(name="decode", start_us=3000, duration_us=7000),
    ],
)


class GeneratePeer:
    """A server that generates by a script and lists `models`; `requests` keeps what it was sent to generate,
    `resumes` what to go on with, `gone` is set when a call was dropped."""

    def __init__(self, tls: grpc.ServerCredentials | None = None) -> None:
        self.script: Script = lambda _request, _context: iter(())
        self.models: list[pb.Model] = []
        self.requests: queue.Queue[pb.GenerateRequest] = queue.Queue()
        self.resumes: queue.Queue[pb.ResumeRequest] = queue.Queue()
        self.authorization: queue.Queue[list[str | bytes]] = queue.Queue()
        self.gone = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.unary_stream_rpc_method_handler(
            self._generate,
            request_deserializer=pb.GenerateRequest.FromString,
            response_serializer=pb.GenerateEvent.SerializeToString,
        )
        listing = grpc.unary_unary_rpc_method_handler(
            lambda _request, _context: pb.ListModelsResponse(models=self.models),
            request_deserializer=pb.ListModelsRequest.FromString,
            response_serializer=pb.ListModelsResponse.SerializeToString,
        )
        resuming = grpc.unary_stream_rpc_method_handler(
            self._resume,
            request_deserializer=pb.ResumeRequest.FromString,
            response_serializer=pb.GenerateEvent.SerializeToString,
        )
        methods = {"Generate": handler, "Resume": resuming, "ListModels": listing}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD, methods),))
        any_port = "127.0.0.1:0"
        port = (
            self.server.add_insecure_port(any_port)
            if tls is None
            else self.server.add_secure_port(any_port, tls)
        )
        self.address = f"127.0.0.1:{port}"
        self.server.start()

    def _resume(self, request: pb.ResumeRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        self.resumes.put(request)
        yield from self.script(request.request, context)

    def _generate(self, request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        self.requests.put(request)
        sent = context.invocation_metadata()
        self.authorization.put([value for name, value in sent if name == "authorization"])
        context.add_callback(self.gone.set)
        yield from self.script(request, context)


def prompt(**fields: Any) -> pb.GenerateEvent:
    return pb.GenerateEvent(
        prompt=pb.PromptInfo(request_id="g.1", model="m", prompt_tokens=2, seed=5, **fields)
    )


def text(value: str, *ids: int, position: int = 0, **fields: Any) -> pb.GenerateEvent:
    return pb.GenerateEvent(text=pb.TextDelta(text=value, token_ids=ids, position=position, **fields))


def end(outcome: pb.Outcome, **fields: Any) -> pb.GenerateEvent:
    return pb.GenerateEvent(end=pb.Terminal(outcome=outcome, timeline=TIMELINE, **fields))


def finished(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
    passage = pb.RetrievedPassage(source="README.md", text="It is so.", score=0.5, prompt_place=1)
    yield prompt(passages=[passage])
    logprob = pb.Logprob(token_id=7, logprob=-0.5, top=[pb.TopLogprob(token_id=8, logprob=-1.0)])
    yield text("Hello", 7, position=2, logprobs=[logprob])
    yield text(" wörld", 8, 9, position=3)
    usage = pb.Usage(prompt_tokens=2, completion_tokens=3)
    yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_LENGTH, usage=usage)
