"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

import grpc
import grpc.aio

from penstock.client._proto import inference_pb2 as pb
from penstock.client.async_stream import AsyncCall, AsyncStream
from penstock.client.channel import (
    OPTIONS,
    Req,
    Res,
    async_method,
    async_stream,
    metadata_of,
    timeout_of,
)
from penstock.client.errors import error_of
from penstock.client.request import (
    GenerateOptions,
    Prompt,
    RetrieveOptions,
    Turn,
    build_prompt,
    build_request,
    build_retrieval,
)
from penstock.client.retry import CallClock, Retry
from penstock.client.stream_state import StreamRequest, StreamState


class AsyncClient:
    """Speaks to one gateway. Tasks of a loop may share it; `close` it, or use it in an `async with` block."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str = "",
        credentials: grpc.ChannelCredentials | None = None,
        retry: Retry | None = None,
    ) -> None:
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=OPTIONS)
        self._metadata = metadata_of(api_key)
        self._retry = retry or Retry()
        self._generate = async_stream(self._channel, "Generate", pb.GenerateRequest)
        self._resume = async_stream(self._channel, "Resume", pb.ResumeRequest)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Send the request; the stream's iteration raises what goes wrong with it."""
        state = StreamState(build_request(prompt, options), self._retry, options.get("deadline_s"))
        return AsyncStream(self._start, state)

    async def cancel(self, request_id: str, *, deadline_s: float | None = None) -> bool:
        """Whether there was such a request (`stream.prompt.request_id`) to end."""
        request = pb.CancelRequest(request_id=request_id)
        return (await self._ask("Cancel", request, pb.CancelResponse, deadline_s)).found

    async def models(self, *, deadline_s: float | None = None) -> list[pb.Model]:
        request = pb.ListModelsRequest()
        return list((await self._ask("ListModels", request, pb.ListModelsResponse, deadline_s)).models)

    async def tokenize(
        self,
        prompt: str | Sequence[Turn],
        *,
        model: str = "",
        add_special_tokens: bool = True,
        deadline_s: float | None = None,
    ) -> list[int]:
        request = build_prompt(prompt)
        request.model = model
        request.add_special_tokens = add_special_tokens
        return list((await self._ask("Tokenize", request, pb.TokenizeResponse, deadline_s)).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, model: str = "", deadline_s: float | None = None
    ) -> str:
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids)
        return (await self._ask("Detokenize", request, pb.DetokenizeResponse, deadline_s)).text

    async def embed(
        self, texts: Sequence[str], *, model: str = "", deadline_s: float | None = None
    ) -> list[pb.Embedding]:
        """One for each text: `values`, and whether the text was `truncated`."""
        request = pb.EmbedRequest(model=model, texts=texts)
        return list((await self._ask("Embed", request, pb.EmbedResponse, deadline_s)).embeddings)

    async def retrieve(
        self, query: str, *, deadline_s: float | None = None, **options: Unpack[RetrieveOptions]
    ) -> pb.RetrieveResponse:
        """The `passages` that fit the query, best first, with what was `degraded` and any `warning`."""
        request = build_retrieval(query, options)
        return await self._ask("Retrieve", request, pb.RetrieveResponse, deadline_s)

    async def rerank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        top_n: int | None = None,
        model: str = "",
        deadline_s: float | None = None,
    ) -> pb.RerankResponse:
        """Its `texts` have `index` and `score`, best first: all of them, or the best `top_n`."""
        request = pb.RerankRequest(model=model, query=query, texts=texts, top_n=top_n)
        return await self._ask("Rerank", request, pb.RerankResponse, deadline_s)

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self, message: StreamRequest, remaining_s: float | None) -> AsyncCall:
        timeout_s = timeout_of(remaining_s)
        if isinstance(message, pb.ResumeRequest):
            return self._resume(message, timeout=timeout_s, metadata=self._metadata)
        return self._generate(message, timeout=timeout_s, metadata=self._metadata)

    async def _ask(self, name: str, request: Req, response: type[Res], deadline_s: float | None) -> Res:
        method = async_method(self._channel, name, type(request), response)
        clock, attempt = CallClock(deadline_s), 1
        while True:
            try:
                return await method(request, timeout=clock.remaining_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as rpc_error:
                error = error_of(rpc_error.code(), rpc_error.details(), rpc_error.trailing_metadata())
                wait_s = self._retry.wait_s(error, attempt, clock.remaining_s)
                if wait_s is None:
                    raise error from rpc_error
            await asyncio.sleep(wait_s)
            attempt += 1
