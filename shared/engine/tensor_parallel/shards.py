"""One process's share of a model: whole KV heads with their query heads, and slices of every MLP.

Each rank computes a part of the sums behind the output and down projections; adding the parts of all ranks
(`reduce`) gives every rank the same hidden state. Norms, embedding, router and head are whole everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shared.engine.loading.config import ModelConfig, MoeConfig
from shared.engine.loading.layers import DenseMlp, LayerWeights, MoeMlp
from shared.engine.loading.linear import DenseLinear, Linear, LinearMap, as_stored, in_groups, with_rows
from shared.engine.loading.model_parts import refuse_parts
from shared.engine.loading.row_numbers import SUPER_COLUMNS
from shared.engine.loading.superblocks import LEAST_COLUMNS, STEP_COLUMNS, SuperblockLinear
from shared.errors import InvalidRequest

Reduce = Callable[[Tensor], Tensor]
"""Partial sums of this rank -> the sums over all ranks, the same bits on every rank."""


_LACKING = ("attention sinks", "experts with biases", "multi-head latent attention")


def shard_config(config: ModelConfig, num_ranks: int) -> ModelConfig:
    """The model that one rank computes. Raises InvalidRequest where it cannot be cut into `num_ranks`."""
    if num_ranks == 1:
        return config
    refuse_parts(config, _LACKING, "tensor_parallel", "use tensor_parallel 1")
    inner = {size for layer in config.layers for size in _inner_sizes(config, layer.moe)}
    parts = [("key-value heads", config.num_kv_heads)] + [("MLP's inner size", size) for size in inner]
    for name, count in parts:
        if count % num_ranks:
            raise InvalidRequest(
                f"tensor_parallel {num_ranks} does not divide the model's {count} {name}; "
                "choose a number of processes that does"
            )
    if config.qk_norm == "all":
        raise InvalidRequest(
            f"{config.architecture} normalises all heads as one vector, which no process has with "
            "tensor_parallel; use tensor_parallel 1"
        )
    layers = tuple(
        layer
        if layer.moe is None
        else replace(
            layer,
            moe=replace(
                layer.moe,
                intermediate_size=layer.moe.intermediate_size // num_ranks,
                shared_intermediate_size=layer.moe.shared_intermediate_size // num_ranks,
            ),
        )
        for layer in config.layers
    )
    return replace(
        config,
        num_heads=config.num_heads // num_ranks,
        num_kv_heads=config.num_kv_heads // num_ranks,
        intermediate_size=config.intermediate_size // num_ranks,
        layers=layers,
    )


def _inner_sizes(config: ModelConfig, moe: MoeConfig | None) -> list[int]:
    """Return the inner sizes of a layer's MLPs."""
    if moe is None:
        return [config.intermediate_size]
    return [moe.intermediate_size] + [moe.shared_intermediate_size] * (moe.shared_intermediate_size > 0)


def shard_layer(layer: LayerWeights, config: ModelConfig, rank: int, num_ranks: int) -> LayerWeights:
    """`rank`'s share of a whole `layer` of a whole model's `config`. Nothing is reduced yet."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv_parts = [(0, queries), (queries, keys), (queries + keys, keys)]
    qkv = _take_rows(layer.qkv, [_share(first, size, rank, num_ranks) for first, size in qkv_parts])
    output = _take_columns(layer.output, _share(0, queries, rank, num_ranks))
    if isinstance(layer.mlp, DenseMlp):
        mlp: DenseMlp | MoeMlp = _shard_mlp(layer.mlp, rank, num_ranks)
    else:
        experts = tuple(_shard_mlp(expert, rank, num_ranks) for expert in layer.mlp.experts)
        shared = None if layer.mlp.shared is None else _shard_mlp(layer.mlp.shared, rank, num_ranks)
        mlp = replace(layer.mlp, experts=experts, shared=shared)
    return replace(layer, qkv=qkv, output=output, mlp=mlp)


def reduce_outputs(layer: LayerWeights, reduce: Reduce) -> LayerWeights:
    """`layer` with sums over all ranks after its output and dense down projections.

    What experts put out is summed once for all of them, by the model (see `Model` classes that take a
    `Reduce`).
    """
    output = _reduced(layer.output, reduce)
    if not isinstance(layer.mlp, DenseMlp):
        return replace(layer, output=output)
    return replace(layer, output=output, mlp=replace(layer.mlp, down=_reduced(layer.mlp.down, reduce)))


@dataclass(frozen=True, slots=True)
class ReducedLinear:
    """A linear map of which each rank holds some columns: the parts are summed, then the bias is added."""

    part: Linear  # without bias
    bias: Tensor | None  # [out], of the whole map
    reduce: Reduce

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of this rank's part"""
        return self.part.shape

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, in of this rank] -> [T, out]"""
        out = self.reduce(self.part(rows))
        return out if self.bias is None else out + self.bias


def _reduced(linear: LinearMap, reduce: Reduce) -> ReducedLinear:
    part = as_stored(linear)
    return ReducedLinear(replace(part, bias=None), part.bias, reduce)


def _share(first: int, size: int, rank: int, num_ranks: int) -> slice:
    each = size // num_ranks
    return slice(first + rank * each, first + (rank + 1) * each)


def _shard_mlp(mlp: DenseMlp, rank: int, num_ranks: int) -> DenseMlp:
    inner = mlp.down.shape[1]
    halves = [_share(first, inner, rank, num_ranks) for first in (0, inner)]
    return DenseMlp(
        _take_rows(mlp.gate_up, halves),
        _take_columns(mlp.down, _share(0, inner, rank, num_ranks)),
    )


def _take_rows(whole: LinearMap, parts: list[slice]) -> Linear:
    return with_rows(as_stored(whole), lambda tensor: torch.cat([tensor[part] for part in parts]))


def _take_columns(whole: LinearMap, part: slice) -> Linear:
    """The bias stays whole: it is added once, after the sum over all ranks."""
    linear = as_stored(whole)
    if isinstance(linear, DenseLinear):
        return replace(linear, weight=linear.weight[:, part].clone())
    if isinstance(linear, SuperblockLinear):
        if part.start % SUPER_COLUMNS == 0 and part.stop % SUPER_COLUMNS == 0:
            return _superblocks(linear, part)
        linear = in_groups(linear)
    group, width = linear.group, linear.codes.shape[1]
    if part.start % group or (part.stop % group and part.stop != width):
        raise InvalidRequest(
            f"{width} quantized columns in groups of {group} cannot be cut at column "
            f"{part.start or part.stop}; choose another quant_group or tensor_parallel"
        )
    groups = slice(part.start // group, -(-part.stop // group))
    return replace(
        linear,
        codes=linear.codes[:, part].clone(),
        scales=linear.scales[:, groups].clone(),
        zeros=linear.zeros[:, groups].clone(),
        minima=None if linear.minima is None else linear.minima[:, groups].clone(),
    )


def _superblocks(linear: SuperblockLinear, part: slice) -> SuperblockLinear:
    def take(tensor: Tensor, columns: int) -> Tensor:
        return tensor[:, part.start // columns : part.stop // columns].clone()

    return replace(
        linear,
        codes=take(linear.codes, 1),
        steps=take(linear.steps, STEP_COLUMNS),
        least=take(linear.least, LEAST_COLUMNS),
        scales=take(linear.scales, SUPER_COLUMNS),
        minima=take(linear.minima, SUPER_COLUMNS),
    )
