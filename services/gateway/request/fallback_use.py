"""Read which models may answer in place of the one that a request names, and by what its share is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest

MAX_FALLBACK_MODELS = 8
"""The most models that a request may name to fall back to."""
MAX_FALLBACK_MODEL_CHARS = 256
"""The longest name of one of them."""
MAX_STICKY_KEY_CHARS = 256
"""The longest key by which a request keeps to one model of those that share."""


@dataclass(frozen=True, slots=True)
class FallbackUse:
    """`allowed`: another model may answer. `models`: those, in order; none are those of the virtual name."""

    allowed: bool
    models: tuple[str, ...] = ()


def read_fallback(message: pb.GenerateRequest) -> FallbackUse | None:
    """Return what the request says, None where it says nothing. Raises InvalidRequest."""
    if not message.HasField("fallback"):
        return None
    asked, models = message.fallback, tuple(message.fallback.models)
    if models and not asked.allowed:
        raise InvalidRequest("fallback.models are named and fallback.allowed is false: send one of them")
    if len(models) > MAX_FALLBACK_MODELS:
        raise InvalidRequest(f"fallback.models has {len(models)} names: send at most {MAX_FALLBACK_MODELS}")
    for index, model in enumerate(models):
        if not 1 <= len(model) <= MAX_FALLBACK_MODEL_CHARS:
            raise InvalidRequest(
                f"fallback.models[{index}] has {len(model)} characters: send 1 to {MAX_FALLBACK_MODEL_CHARS}"
            )
    return FallbackUse(asked.allowed, tuple(dict.fromkeys(models)))


def read_sticky_key(message: pb.GenerateRequest) -> str:
    """Return the key, "" for none. Raises InvalidRequest for one that is too long."""
    if len(message.sticky_key) > MAX_STICKY_KEY_CHARS:
        raise InvalidRequest(
            f"sticky_key has {len(message.sticky_key)} characters: send at most {MAX_STICKY_KEY_CHARS}"
        )
    return message.sticky_key
