# ruff: noqa: N802 - the names are those of the service
# Types of the generated inference_pb2_grpc.py, as grpc.aio uses it (the generator writes none).
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from protos.penstock.v1.inference_pb2 import (
    CancelRequest,
    CancelResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    EmbedRequest,
    EmbedResponse,
    GenerateEvent,
    GenerateRequest,
    ListModelsRequest,
    ListModelsResponse,
    RerankRequest,
    RerankResponse,
    ResumeRequest,
    RetrieveRequest,
    RetrieveResponse,
    TokenizeRequest,
    TokenizeResponse,
)

class InferenceStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    def Generate(
        self, request: GenerateRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> GenerateCall: ...
    def Resume(
        self, request: ResumeRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> GenerateCall: ...
    async def Cancel(
        self, request: CancelRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> CancelResponse: ...
    async def ListModels(
        self, request: ListModelsRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> ListModelsResponse: ...
    async def Tokenize(
        self, request: TokenizeRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> TokenizeResponse: ...
    async def Detokenize(
        self, request: DetokenizeRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> DetokenizeResponse: ...
    async def Embed(
        self, request: EmbedRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> EmbedResponse: ...
    async def Retrieve(
        self, request: RetrieveRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> RetrieveResponse: ...
    async def Rerank(
        self, request: RerankRequest, *, timeout: float | None = None, metadata: Any = None
    ) -> RerankResponse: ...

class GenerateCall(AsyncIterator[GenerateEvent]):
    async def __anext__(self) -> GenerateEvent: ...
    async def read(self) -> Any: ...
    async def code(self) -> grpc.StatusCode: ...
    async def details(self) -> str: ...
    def cancel(self) -> bool: ...
    def cancelled(self) -> bool: ...

class InferenceServicer:
    async def Generate(
        self,
        request: GenerateRequest,
        context: grpc.aio.ServicerContext[GenerateRequest, GenerateEvent],
    ) -> None: ...
    async def Resume(
        self,
        request: ResumeRequest,
        context: grpc.aio.ServicerContext[ResumeRequest, GenerateEvent],
    ) -> None: ...
    async def Cancel(
        self, request: CancelRequest, context: grpc.aio.ServicerContext[CancelRequest, CancelResponse]
    ) -> CancelResponse: ...
    async def ListModels(
        self,
        request: ListModelsRequest,
        context: grpc.aio.ServicerContext[ListModelsRequest, ListModelsResponse],
    ) -> ListModelsResponse: ...
    async def Tokenize(
        self, request: TokenizeRequest, context: grpc.aio.ServicerContext[TokenizeRequest, TokenizeResponse]
    ) -> TokenizeResponse: ...
    async def Detokenize(
        self,
        request: DetokenizeRequest,
        context: grpc.aio.ServicerContext[DetokenizeRequest, DetokenizeResponse],
    ) -> DetokenizeResponse: ...
    async def Embed(
        self, request: EmbedRequest, context: grpc.aio.ServicerContext[EmbedRequest, EmbedResponse]
    ) -> EmbedResponse: ...
    async def Retrieve(
        self, request: RetrieveRequest, context: grpc.aio.ServicerContext[RetrieveRequest, RetrieveResponse]
    ) -> RetrieveResponse: ...
    async def Rerank(
        self, request: RerankRequest, context: grpc.aio.ServicerContext[RerankRequest, RerankResponse]
    ) -> RerankResponse: ...

def add_InferenceServicer_to_server(servicer: InferenceServicer, server: grpc.aio.Server) -> None: ...
