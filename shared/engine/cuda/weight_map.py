"""The same model with other linear maps in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shared.engine.loading.layers import DenseMlp, LayerWeights, ModelWeights, MoeMlp
from shared.engine.loading.linear import LinearMap


def map_linears(weights: ModelWeights, change: Callable[[LinearMap], LinearMap]) -> ModelWeights:
    """`weights` with every linear map, the head's included, passed through `change`."""
    layers = tuple(map_layer(layer, change) for layer in weights.layers)
    return replace(weights, layers=layers, head=change(weights.head))


def map_layer(layer: LayerWeights, change: Callable[[LinearMap], LinearMap]) -> LayerWeights:
    """The same for one layer."""
    return replace(layer, qkv=change(layer.qkv), output=change(layer.output), mlp=_mlp(layer.mlp, change))


def _mlp(mlp: DenseMlp | MoeMlp, change: Callable[[LinearMap], LinearMap]) -> DenseMlp | MoeMlp:
    if isinstance(mlp, DenseMlp):
        return _dense(mlp, change)
    experts = tuple(_dense(expert, change) for expert in mlp.experts)
    shared = None if mlp.shared is None else _dense(mlp.shared, change)
    return replace(mlp, experts=experts, shared=shared)


def _dense(mlp: DenseMlp, change: Callable[[LinearMap], LinearMap]) -> DenseMlp:
    return DenseMlp(change(mlp.gate_up), change(mlp.down))
