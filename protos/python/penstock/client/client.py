"""The client for programs with threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack, cast

import grpc

from penstock.client._proto import inference_pb2 as pb
from penstock.client.channel import (
    OPTIONS,
    Req,
    Res,
    blocking_method,
    blocking_stream,
    metadata_of,
    timeout_of,
)
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
from penstock.client.stream import Stream, StreamCall, rpc_error_of
from penstock.client.stream_state import StreamRequest, StreamState


class Client:
    """Speaks to one gateway. Threads may share it; `close` it, or use it in a `with` block."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str = "",
        credentials: grpc.ChannelCredentials | None = None,
        retry: Retry | None = None,
    ) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=OPTIONS)
        self._metadata = metadata_of(api_key)
        self._retry = retry or Retry()
        self._generate = blocking_stream(self._channel, "Generate", pb.GenerateRequest)
        self._resume = blocking_stream(self._channel, "Resume", pb.ResumeRequest)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Stream:
        """Send the request; the stream's iteration raises what goes wrong with it."""
        state = StreamState(build_request(prompt, options), self._retry, options.get("deadline_s"))
        return Stream(self._start, state)

    def cancel(self, request_id: str, *, deadline_s: float | None = None) -> bool:
        """Whether there was such a request (`stream.prompt.request_id`) to end."""
        request = pb.CancelRequest(request_id=request_id)
        return self._ask("Cancel", request, pb.CancelResponse, deadline_s).found

    def models(self, *, deadline_s: float | None = None) -> list[pb.Model]:
        request = pb.ListModelsRequest()
        return list(self._ask("ListModels", request, pb.ListModelsResponse, deadline_s).models)

    def tokenize(
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
        return list(self._ask("Tokenize", request, pb.TokenizeResponse, deadline_s).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, model: str = "", deadline_s: float | None = None
    ) -> str:
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids)
        return self._ask("Detokenize", request, pb.DetokenizeResponse, deadline_s).text

    def embed(
        self, texts: Sequence[str], *, model: str = "", deadline_s: float | None = None
    ) -> list[pb.Embedding]:
        """One for each text: `values`, and whether the text was `truncated`."""
        request = pb.EmbedRequest(model=model, texts=texts)
        return list(self._ask("Embed", request, pb.EmbedResponse, deadline_s).embeddings)

    def retrieve(
        self, query: str, *, deadline_s: float | None = None, **options: Unpack[RetrieveOptions]
    ) -> pb.RetrieveResponse:
        """The `passages` that fit the query, best first, with what was `degraded` and any `warning`."""
        request = build_retrieval(query, options)
        return self._ask("Retrieve", request, pb.RetrieveResponse, deadline_s)

    def rerank(
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
        return self._ask("Rerank", request, pb.RerankResponse, deadline_s)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, message: StreamRequest, remaining_s: float | None) -> StreamCall:
        timeout_s = timeout_of(remaining_s)
        call: Any
        if isinstance(message, pb.ResumeRequest):
            call = self._resume(message, timeout=timeout_s, metadata=self._metadata)
        else:
            call = self._generate(message, timeout=timeout_s, metadata=self._metadata)
        return cast("StreamCall", call)

    def _ask(self, name: str, request: Req, response: type[Res], deadline_s: float | None) -> Res:
        method = blocking_method(self._channel, name, type(request), response)
        clock, attempt = CallClock(deadline_s), 1
        while True:
            try:
                return method(request, timeout=clock.remaining_s, metadata=self._metadata)
            except grpc.RpcError as rpc_error:
                error = rpc_error_of(rpc_error)
                wait_s = self._retry.wait_s(error, attempt, clock.remaining_s)
                if wait_s is None:
                    raise error from rpc_error
            time.sleep(wait_s)
            attempt += 1
