# ruff: noqa: N802 - the names are those of the service
# Types of the generated inference_pb2_grpc.py, as grpc.aio uses it (the generator writes none).
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from protos.penstock.v1.inference_pb2 import CancelRequest, CancelResponse, GenerateEvent, GenerateRequest

class InferenceStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    def Generate(
        self, request: GenerateRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> GenerateCall: ...
    async def Cancel(
        self, request: CancelRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> CancelResponse: ...

class GenerateCall(AsyncIterator[GenerateEvent]):
    async def __anext__(self) -> GenerateEvent: ...
    async def read(self) -> Any: ...
    async def code(self) -> grpc.StatusCode: ...
    async def details(self) -> str: ...
    def cancel(self) -> bool: ...

class InferenceServicer:
    async def Generate(
        self,
        request: GenerateRequest,
        context: grpc.aio.ServicerContext[GenerateRequest, GenerateEvent],
    ) -> None: ...
    async def Cancel(
        self, request: CancelRequest, context: grpc.aio.ServicerContext[CancelRequest, CancelResponse]
    ) -> CancelResponse: ...

def add_InferenceServicer_to_server(servicer: InferenceServicer, server: grpc.aio.Server) -> None: ...
