"""The BERT encoder of all-MiniLM-L6-v2: 6 layers, 12 heads, width 384, as functions over its weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 (the name every torch program uses)
from torch import Tensor

LAYERS = 6
HEADS = 12
WIDTH = 384
EPSILON = 1e-12

Weights = Mapping[str, Tensor]


def hidden_states(weights: Weights, ids: Tensor, mask: Tensor) -> Tensor:
    """Hidden states [batch, length, WIDTH] of `ids` [batch, length]; `mask` is True where a token is."""
    hidden = _embed(weights, ids)
    attend = mask[:, None, None, :]  # [batch, heads, queries, keys]
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        attended = _attend(weights, prefix + "attention.self.", hidden, attend)
        attended = _linear(weights, prefix + "attention.output.dense", attended)
        hidden = _norm(weights, prefix + "attention.output.LayerNorm", hidden + attended)
        inner = F.gelu(_linear(weights, prefix + "intermediate.dense", hidden))
        hidden = _norm(
            weights, prefix + "output.LayerNorm", hidden + _linear(weights, prefix + "output.dense", inner)
        )
    return hidden


def half_precision(weights: Weights) -> Weights:
    """With linear layers in bfloat16; norms and word vectors, which cost nothing, stay as they are."""
    return {
        name: weight.to(torch.bfloat16) if name.startswith("encoder.") and "LayerNorm" not in name else weight
        for name, weight in weights.items()
    }


def sentence_vectors(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of the real tokens' states, of length 1: [batch, WIDTH]."""
    weight = mask.unsqueeze(-1).to(hidden.dtype)  # [batch, length, 1]
    mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
    return F.normalize(mean, dim=-1)


def _embed(weights: Weights, ids: Tensor) -> Tensor:
    words = F.embedding(ids, weights["embeddings.word_embeddings.weight"])  # [batch, length, WIDTH]
    positions = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]  # [length, WIDTH]
    kind = weights["embeddings.token_type_embeddings.weight"][0]  # [WIDTH]: every token is of the first text
    return _norm(weights, "embeddings.LayerNorm", words + positions + kind)


def _attend(weights: Weights, prefix: str, hidden: Tensor, attend: Tensor) -> Tensor:
    batch, length, _ = hidden.shape

    def heads(name: str) -> Tensor:  # [batch, heads, length, width / heads]
        projected = _linear(weights, prefix + name, hidden)
        return projected.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)

    mixed = F.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), attn_mask=attend)
    return mixed.transpose(1, 2).reshape(batch, length, WIDTH)


def _linear(weights: Weights, name: str, value: Tensor) -> Tensor:
    """In the arithmetic of its weights; what goes in and comes out is the same for all."""
    weight = weights[name + ".weight"]
    return F.linear(value.to(weight.dtype), weight, weights[name + ".bias"]).to(value.dtype)


def _norm(weights: Weights, name: str, value: Tensor) -> Tensor:
    return F.layer_norm(value, (WIDTH,), weights[name + ".weight"], weights[name + ".bias"], EPSILON)
