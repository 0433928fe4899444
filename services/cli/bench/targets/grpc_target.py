"""Calls over Penstock's own contract, over channels that stay open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import cycle

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.targets.target import (
    CallEnded,
    CallFacts,
    CallOutcome,
    StreamPiece,
    TargetCall,
    TargetSampling,
)

READY_TIMEOUT_S = 30.0
OUTCOMES = {
    pb.OUTCOME_CANCELLED: CallOutcome.FAILED,
    pb.OUTCOME_EXPIRED: CallOutcome.EXPIRED,
    pb.OUTCOME_SHED: CallOutcome.SHED,
}
STATUSES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: CallOutcome.SHED,
    grpc.StatusCode.DEADLINE_EXCEEDED: CallOutcome.EXPIRED,
    grpc.StatusCode.INVALID_ARGUMENT: CallOutcome.REFUSED,
    grpc.StatusCode.NOT_FOUND: CallOutcome.REFUSED,
    grpc.StatusCode.UNAUTHENTICATED: CallOutcome.REFUSED,
}
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 13))
"""Little is sent ahead to a client that does not read, so that a server can notice."""
NO_PROXY = ("grpc.enable_http_proxy", 0)


class GrpcTarget:
    """`plain`: prompts are continued as they are, else they are messages of a chat. `credentials`: of
    TLS, where the gateway talks it. Make it inside of a running loop."""

    def __init__(
        self,
        address: str,
        sampling: TargetSampling,
        *,
        key: str = "",
        plain: bool = False,
        credentials: grpc.ChannelCredentials | None = None,
        connections: int = 1,
    ) -> None:
        self._address = address
        self._sampling = sampling
        self._plain = plain
        self._credentials = credentials
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._channels = [self._channel((("penstock.channel", index),)) for index in range(connections)]
        self._stubs = cycle([rpc.InferenceStub(channel) for channel in self._channels])

    async def pieces(self, call: TargetCall, facts: CallFacts) -> AsyncGenerator[StreamPiece]:
        message = self._message(call)
        alone = self._channel(NARROW) if call.alone else None
        stub = rpc.InferenceStub(alone) if alone else next(self._stubs)
        stream = stub.Generate(message, metadata=self._metadata)
        end: pb.Terminal | None = None
        try:
            async for event in stream:
                match event.WhichOneof("event"):
                    case "prompt":
                        facts.model, facts.request_id = event.prompt.model, event.prompt.request_id
                        facts.prompt_tokens = event.prompt.prompt_tokens
                        facts.earlier_answer = event.prompt.HasField("cached")
                    case "text":
                        yield StreamPiece(event.text.text, len(event.text.token_ids))
                    case "end":
                        end = event.end
                        _note_end(end, facts)
        except grpc.aio.AioRpcError as error:
            raise _ended(error, end) from error
        finally:
            if alone is not None:
                await alone.close(grace=None)
            stream.cancel()

    async def find_model(self) -> str:
        if self._sampling.model:
            return self._sampling.model
        stub = next(self._stubs)
        try:
            listed = await stub.ListModels(
                pb.ListModelsRequest(), timeout=READY_TIMEOUT_S, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise _ended(error, None) from error
        generating = [each.name for each in listed.models if each.kind == pb.MODEL_KIND_GENERATION]
        if not generating:
            raise CallEnded(CallOutcome.FAILED, "no models", "the gateway serves none that generates")
        return generating[0]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(grace=None)

    def _channel(self, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        """Options that no other channel has keep it on a connection of its own."""
        own = (NO_PROXY, ("grpc.use_local_subchannel_pool", 1), *options)
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=own)
        return grpc.aio.secure_channel(self._address, self._credentials, options=own)

    def _message(self, call: TargetCall) -> pb.GenerateRequest:
        message = pb.GenerateRequest(
            model=self._sampling.model,
            sampling=pb.Sampling(
                temperature=self._sampling.temperature,
                max_tokens=call.max_tokens,
                ignore_eos=self._sampling.ignore_eos,
            ),
        )
        if self._plain:
            message.text = call.plain_text
        else:
            message.chat.template_optional = True
            message.chat.messages.extend(
                pb.ChatMessage(role=role, content=text) for role, text in call.messages
            )
        if call.deadline_ms:
            message.deadline_ms = call.deadline_ms
        if call.json_schema:
            message.sampling.json_schema = call.json_schema
        if (hints := call.hints) is not None:
            message.agent.CopyFrom(
                pb.AgentHints(
                    session=hints.session,
                    parent_session=hints.parent,
                    final=hints.final,
                    pause_ms=hints.pause_ms,
                    warm_next=hints.goes_on,
                )
            )
        if call.passages:
            message.retrieval.MergeFrom(pb.Retrieval(enabled=True, k=call.passages, may_degrade=False))
        return message


def _note_end(end: pb.Terminal, facts: CallFacts) -> None:
    usage = end.usage
    facts.completion_tokens, facts.cached_tokens = usage.completion_tokens, usage.cached_tokens
    facts.drafted_tokens, facts.replacements = usage.accepted_draft_tokens, usage.replacements
    for phase in end.timeline.phases:
        facts.phases_ms[phase.name] = facts.phases_ms.get(phase.name, 0.0) + phase.duration_us / 1e3


def _ended(error: grpc.aio.AioRpcError, end: pb.Terminal | None) -> CallEnded:
    """Return how a call ended, by its terminal event where there was one, else by its status."""
    by_status = STATUSES.get(error.code(), CallOutcome.FAILED)
    outcome = by_status if end is None else OUTCOMES.get(end.outcome, by_status)
    code = end.error.code if end is not None else ""
    return CallEnded(outcome, f"grpc {error.code().name} {code}".rstrip(), error.details() or "")
