"""The calls of the gRPC edge that are no requests: models, ids of texts, texts of ids, vectors, passages."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.asks.passage_asks import PassageAsks, read_passage_query
from services.gateway.asks.text_asks import TextAsks, read_vector
from services.gateway.config import GatewayConfig
from services.gateway.fleet.served_models import ServedModel
from services.gateway.grpc.edge_status import abort_call
from services.gateway.request.prompt_passages import retrieved_passage
from services.gateway.scope.arrival import arrived_s
from services.gateway.scope.budget import answerable_s
from services.gateway.session.ingress import Ingress
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.files.api_key_file import ApiKey
from shared.sampling.defaults import SamplingDefault

AUTHORIZATION = "authorization"
"""The metadata that holds `Bearer <key>`."""

AnyCall = grpc.aio.ServicerContext[Any, Any]


class TextEdge(rpc.InferenceServicer):
    def __init__(
        self,
        text_asks: TextAsks,
        passage_asks: PassageAsks,
        ingress: Ingress,
        config: GatewayConfig,
    ) -> None:
        self._text_asks = text_asks
        self._passage_asks = passage_asks
        self._ingress = ingress
        self._config = config

    async def ListModels(  # noqa: N802 - gRPC's name
        self,
        request: pb.ListModelsRequest,  # noqa: ARG002 - it has no fields
        context: AnyCall,
    ) -> pb.ListModelsResponse:
        try:
            key = self._ingress.identify(call_authorization(context))
        except PenstockError as error:
            await abort_call(context, error)
        return pb.ListModelsResponse(models=[_model(model) for model in self._text_asks.models(key)])

    async def Tokenize(  # noqa: N802 - gRPC's name
        self, request: pb.TokenizeRequest, context: AnyCall
    ) -> pb.TokenizeResponse:
        deadline = self._deadline(context.time_remaining())
        key: ApiKey | None = None
        try:
            key = self._identify(context)
            valid = self._ingress.validate(_as_prompt(request))
            special = not request.HasField("add_special_tokens") or request.add_special_tokens
            found = await self._text_asks.tokenize(key, valid, deadline, add_special_tokens=special)
        except PenstockError as error:
            await self._refuse(context, key, error)
        return pb.TokenizeResponse(model=found.model, token_ids=found.token_ids)

    async def Detokenize(  # noqa: N802 - gRPC's name
        self, request: pb.DetokenizeRequest, context: AnyCall
    ) -> pb.DetokenizeResponse:
        deadline = self._deadline(context.time_remaining())
        key: ApiKey | None = None
        try:
            key = self._identify(context)
            found = await self._text_asks.detokenize(key, request.model, request.token_ids, deadline)
        except PenstockError as error:
            await self._refuse(context, key, error)
        return pb.DetokenizeResponse(model=found.model, text=found.text)

    async def Embed(self, request: pb.EmbedRequest, context: AnyCall) -> pb.EmbedResponse:  # noqa: N802 - gRPC's name
        deadline = self._deadline(context.time_remaining())
        key: ApiKey | None = None
        try:
            key = self._identify(context)
            found = await self._text_asks.embed(key, request.model, request.texts, deadline)
        except PenstockError as error:
            await self._refuse(context, key, error)
        rows = zip(found.vectors, found.tokens, found.truncated, strict=True)
        return pb.EmbedResponse(
            model=found.model,
            embeddings=[
                pb.Embedding(values=read_vector(vector), tokens=tokens, truncated=truncated)
                for vector, tokens, truncated in rows
            ],
        )

    async def Retrieve(  # noqa: N802 - gRPC's name
        self, request: pb.RetrieveRequest, context: AnyCall
    ) -> pb.RetrieveResponse:
        deadline = self._deadline(context.time_remaining())
        key: ApiKey | None = None
        try:
            key = self._identify(context)
            found = await self._passage_asks.retrieve(key, read_passage_query(request), deadline)
        except PenstockError as error:
            await self._refuse(context, key, error)
        return pb.RetrieveResponse(
            corpus=found.corpus,
            passages=map(retrieved_passage, found.passages),
            degraded=found.degraded,
            warning=found.warning,
        )

    async def Rerank(  # noqa: N802 - gRPC's name
        self, request: pb.RerankRequest, context: AnyCall
    ) -> pb.RerankResponse:
        deadline = self._deadline(context.time_remaining())
        key: ApiKey | None = None
        try:
            key = self._identify(context)
            found = await self._passage_asks.rerank(
                key,
                request.model,
                request.query,
                request.texts,
                deadline,
                top_n=request.top_n if request.HasField("top_n") else None,
            )
        except PenstockError as error:
            await self._refuse(context, key, error)
        return pb.RerankResponse(
            model=found.model,
            texts=[pb.RankedText(index=place, score=found.scores[place]) for place in found.order],
            tokens=found.tokens,
            warning=found.warning,
        )

    def _identify(self, context: AnyCall) -> ApiKey:
        """Return whose call it is; raises Unauthenticated, or LimitReached where it has none left."""
        key = self._ingress.identify(call_authorization(context))
        self._ingress.check_rate(key)
        return key

    async def _refuse(self, context: AnyCall, key: ApiKey | None, error: PenstockError) -> NoReturn:
        self._ingress.count_refused(key, error)
        await abort_call(context, error)

    def _deadline(self, remaining_s: float | None) -> Deadline:
        """`remaining_s` is that of the call, None where it has no deadline."""
        if remaining_s is None:
            return Deadline(arrived_s() + self._config.default_text_deadline_s)
        return Deadline.after(answerable_s(remaining_s))


def call_authorization(call: AnyCall) -> list[str | bytes]:
    """The values of that header."""
    return client_metadata(call, AUTHORIZATION)


def client_metadata(call: AnyCall, wanted: str) -> list[str | bytes]:
    """Return all values of that name that the client sent."""
    return [value for name, value in call.invocation_metadata() or () if name == wanted]


def _default(default: SamplingDefault) -> pb.SamplingDefault:
    return pb.SamplingDefault(name=default.name, value=default.value, source=default.source)


def _as_prompt(request: pb.TokenizeRequest) -> pb.GenerateRequest:
    """Turn the message into a generate request, so that a prompt has the same limits everywhere."""
    kind = request.WhichOneof("prompt")
    return pb.GenerateRequest(
        model=request.model,
        text=request.text if kind == "text" else None,
        chat=request.chat if kind == "chat" else None,
    )


def _model(model: ServedModel) -> pb.Model:
    return pb.Model(
        name=model.name,
        kind=pb.MODEL_KIND_EMBEDDING if model.embeds else pb.MODEL_KIND_GENERATION,
        context_tokens=model.context_tokens,
        has_chat_template=model.has_chat_template,
        instances=[pb.ModelInstance(role=role, name=name) for role, name in model.instances],
        base=model.base,
        default_sampling=map(_default, model.default_sampling),
        is_default=model.is_default,
        targets=model.targets,
    )
