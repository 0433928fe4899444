"""Parts of a model that not every backend computes: they are refused by name before a weight is read."""

from __future__ import annotations

from collections.abc import Callable, Collection

from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest

_PARTS: dict[str, Callable[[ModelConfig], bool]] = {
    "attention sinks": lambda model: model.attention_sinks,
    "experts with biases": lambda model: any(
        layer.moe is not None and layer.moe.expert_bias for layer in model.layers
    ),
    "norms that take the mean away": lambda model: model.norm_kind != "rms",
    "attention and MLP beside each other": lambda model: model.norms == "shared",
    "a scaled residual": lambda model: model.residual_scale != 1,
    "scaled logits": lambda model: model.logit_scale != 1,
    "multi-head latent attention": lambda model: model.latent is not None,
    "queries that grow with the context": lambda model: model.query_growth > 0,
}
"""The test whether a model has a part, by the name that an error says."""


def first_part(model: ModelConfig, names: Collection[str]) -> str | None:
    """The first of the parts called `names` that `model` has; None when it has none of them."""
    return next((name for name in names if _PARTS[name](model)), None)


def refuse_parts(model: ModelConfig, lacking: Collection[str], where: str, instead: str) -> None:
    """Raise InvalidRequest when `model` has a part among those that `where` is `lacking`."""
    name = first_part(model, lacking)
    if name is not None:
        raise InvalidRequest(f"{model.architecture} has {name}, which {where} does not compute; {instead}")
