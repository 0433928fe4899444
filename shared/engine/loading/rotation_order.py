"""The order of a head's dimensions: neighbours that a checkpoint rotates are put half a rotation apart."""

from __future__ import annotations

import torch
from torch import Tensor

from shared.engine.loading.config import ModelConfig
from shared.engine.loading.linear import DenseLinear, Linear, with_rows


def halves_order(config: ModelConfig) -> Tensor:
    """int64 [outputs of `qkv`]: which stored output of queries, keys and values comes where.

    Of the dimensions that rotate, all first ones of a pair come before all second ones. Queries and keys are
    ordered alike, so their products stay what they are; values stay where they are.
    """
    if config.latent is not None:
        latent = config.latent
        rank = latent.query_rank
        queries = latent_query_order(config) if rank is None else torch.arange(rank)
        kept = _head_order(latent.key_dim, latent.rank, latent.rope_dim)
        return torch.cat((queries, len(queries) + kept))
    dim, values = config.head_dim, config.num_kv_heads * config.head_dim
    rotary = max((layer.rope.rotary_dim for layer in config.layers if layer.rope is not None), default=0)
    turned = _of_heads(config.num_heads + config.num_kv_heads, _head_order(dim, 0, rotary))
    return torch.cat((turned, len(turned) + torch.arange(values)))


def latent_query_order(config: ModelConfig) -> Tensor:
    """int64 [heads * query_dim]: the same for the queries of multi-head latent attention."""
    latent = config.latent
    assert latent is not None
    return _of_heads(config.num_heads, _head_order(latent.query_dim, latent.plain_dim, latent.rope_dim))


def _head_order(dim: int, first: int, rotary: int) -> Tensor:
    """[dim]: of one head, whose `rotary` dimensions from `first` on rotate."""
    pairs = torch.arange(first, first + rotary)
    return torch.cat((torch.arange(first), pairs[::2], pairs[1::2], torch.arange(first + rotary, dim)))


def _of_heads(count: int, head: Tensor) -> Tensor:
    return (torch.arange(count)[:, None] * len(head) + head).flatten()


def with_outputs_in_order(linear: Linear, order: Tensor) -> Linear:
    """`linear` with its outputs in that order."""
    order = order.to((linear.weight if isinstance(linear, DenseLinear) else linear.codes).device)
    return with_rows(linear, lambda tensor: tensor[order])
