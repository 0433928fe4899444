"""The order of a head's dimensions: neighbours that a checkpoint rotates are put half a rotation apart."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from shared.engine.loading.config import ModelConfig
from shared.engine.loading.linear import DenseLinear, Linear


def halves_order(config: ModelConfig) -> Tensor:
    """int64 [(heads + 2 * kv_heads) * head_dim]: which stored output of queries, keys and values comes where.

    Of the dimensions that rotate, all first ones of a pair come before all second ones. Queries and keys are
    ordered alike, so their products stay what they are; values stay where they are.
    """
    dim = config.head_dim
    rotary = max((layer.rope.rotary_dim for layer in config.layers if layer.rope is not None), default=0)
    head = torch.cat((torch.arange(0, rotary, 2), torch.arange(1, rotary, 2), torch.arange(rotary, dim)))
    turned = (config.num_heads + config.num_kv_heads) * dim
    starts = torch.arange(0, turned, dim)
    return torch.cat(
        ((starts[:, None] + head).flatten(), torch.arange(turned, turned + config.num_kv_heads * dim))
    )


def with_outputs_in_order(linear: Linear, order: Tensor) -> Linear:
    """`linear` with its outputs in that order."""
    order = order.to((linear.weight if isinstance(linear, DenseLinear) else linear.codes).device)
    bias = None if linear.bias is None else linear.bias[order]
    if isinstance(linear, DenseLinear):
        return DenseLinear(linear.weight[order], bias)
    minima = None if linear.minima is None else linear.minima[order]
    codes, scales, zeros = (part[order] for part in (linear.codes, linear.scales, linear.zeros))
    return replace(linear, codes=codes, scales=scales, zeros=zeros, bias=bias, minima=minima)
