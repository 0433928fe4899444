"""The models that a gateway serves, as a conversation needs to know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.generate_call import OpenGateway, last_cause
from shared.errors import InvalidRequest, Unavailable

METHOD = "/penstock.v1.Inference/ListModels"
TIMEOUT_S = 10.0


class ServedModels:
    def __init__(self, context_tokens: Mapping[str, int], default: str = "") -> None:
        """`context_tokens`: of each model by its name, 0 where that is not known yet. `default`: the one that
        answers where none is named."""
        self._context_tokens = dict(context_tokens)
        self._default = default

    @classmethod
    def of(cls, gateway: OpenGateway) -> Self:
        """Ask the gateway, which may not say. Raises Unavailable where none answers."""
        list_models = gateway.channel.unary_unary(
            METHOD,
            request_serializer=pb.ListModelsRequest.SerializeToString,
            response_deserializer=pb.ListModelsResponse.FromString,
        )
        try:
            told = list_models(pb.ListModelsRequest(), timeout=TIMEOUT_S, metadata=gateway.metadata)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unavailable(
                    f"no gateway answers at {gateway.address}: {last_cause(error.details() or '')}; is the "
                    "stack running? Over TLS it needs --tls-ca"
                ) from error
            return cls({})  # its answer to the first question says what it has against us
        models = [each for each in told.models if each.kind == pb.MODEL_KIND_GENERATION]
        bases = [each for each in models if not each.base]
        default = bases if len(bases) == 1 else [each for each in bases if each.is_default]
        return cls({each.name: each.context_tokens for each in models}, default[0].name if default else "")

    def context_tokens(self, name: str) -> int:
        """Return how many tokens a conversation with it may have, 0 where nobody knows."""
        return self._context_tokens.get(self._named(name), 0)

    def check(self, name: str) -> None:
        """Raise InvalidRequest for a model that is not served."""
        if self._context_tokens and name not in self._context_tokens:
            raise InvalidRequest(f"there is no {name}; there are {', '.join(sorted(self._context_tokens))}")

    def listed(self, name: str) -> str:
        """Return a line for each, the one that answers with a mark."""
        if not self._context_tokens:
            return "the gateway does not say which models there are"
        answering = self._named(name)
        return "\n".join(
            f"{'*' if each == answering else ' '} {self._described(each)}"
            for each in sorted(self._context_tokens)
        )

    def banner(self, name: str, *, retrieve: bool) -> str:
        """Return the line above a conversation."""
        told = [self._described(self._named(name))] if self._named(name) else []
        told += [f"retrieval {'on' if retrieve else 'off'}", "/help lists commands"]
        return " · ".join(told)

    def _named(self, name: str) -> str:
        """Return the model that answers: the one that is asked for, or the default one."""
        return name or self._default

    def _described(self, name: str) -> str:
        tokens = self._context_tokens.get(name, 0)
        return f"{name} · {tokens:,} tokens of context" if tokens else name
