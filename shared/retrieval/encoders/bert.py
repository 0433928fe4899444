"""BERT encoders as Hugging Face checkpoints have them, and what they compute in torch.

Those of `BertModel` and of `RobertaModel`, which XLM-R is too: the same layers, but for positions that count
from `pad_token_id + 1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name every torch program uses)
from torch import Tensor

from shared.engine.loading.encoder import EncoderLayer, EncoderWeights
from shared.engine.loading.families.raw_config import RawConfig, shown
from shared.engine.loading.linear import DenseLinear
from shared.errors import InvalidRequest

ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
MODEL_TYPES = ("bert", *ROBERTA_TYPES)
ACTIVATION = "gelu"
MAX_LAYERS = 64
"""The most layers of an encoder."""


def read_encoder(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> EncoderWeights:
    """The encoder among a checkpoint's `tensors`. Raises InvalidRequest for one that is none of these, whose
    config does not fit its tensors, or that lacks one."""
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise InvalidRequest(
            f"a model of type {shown(model_type)} is no encoder that is known: {MODEL_TYPES}"
        )
    if config.get("hidden_act", ACTIVATION) != ACTIVATION:
        raise InvalidRequest(f"activation {shown(config['hidden_act'])} is not supported; use {ACTIVATION!r}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise InvalidRequest(f"positions {shown(config['position_embedding_type'])} are not supported")
    stated = RawConfig(config, "float32")
    num_layers = stated.integer("num_hidden_layers", at_most=MAX_LAYERS)
    heads, hidden = stated.integer("num_attention_heads"), stated.integer("hidden_size")
    if hidden % heads:
        raise InvalidRequest(f"{num_layers} layers of width {hidden} with {heads} heads are no encoder")
    named = _Tensors(tensors, hidden)
    first = stated.integer("pad_token_id", 0, at_least=0) + 1 if model_type in ROBERTA_TYPES else 0
    return EncoderWeights(
        heads=heads,
        norm_eps=stated.number("layer_norm_eps", 1e-12),
        words=named.table("embeddings.word_embeddings"),
        positions=named.table("embeddings.position_embeddings")[first:],
        kinds=named.table("embeddings.token_type_embeddings"),
        norm=named.vector("embeddings.LayerNorm.weight"),
        norm_bias=named.vector("embeddings.LayerNorm.bias"),
        layers=tuple(named.layer(f"encoder.layer.{index}.") for index in range(num_layers)),
    )


class _Tensors:
    """A checkpoint's, by their names without the name of the model around the encoder."""

    def __init__(self, tensors: Mapping[str, Tensor], hidden: int) -> None:
        marker = "embeddings.word_embeddings.weight"
        self._prefix = next((name.removesuffix(marker) for name in tensors if name.endswith(marker)), "")
        self._tensors = tensors
        self._hidden = hidden

    def table(self, name: str) -> Tensor:  # [rows, hidden]
        tensor = self._get(name + ".weight")
        if tensor.ndim != 2 or tensor.shape[1] != self._hidden or not len(tensor):
            raise InvalidRequest(f"{name} is {list(tensor.shape)}, not rows of {self._hidden}")
        return tensor.float()

    def vector(self, name: str) -> Tensor:  # [hidden]
        tensor = self._get(name)
        if tensor.shape != (self._hidden,):
            raise InvalidRequest(f"{name} is {list(tensor.shape)}, not {self._hidden}")
        return tensor.float()

    def layer(self, prefix: str) -> EncoderLayer:
        own, hidden = prefix + "attention.self.", self._hidden
        qkv = [self._linear(own + name, hidden, hidden) for name in ("query", "key", "value")]
        inner = len(self._get(prefix + "intermediate.dense.weight"))
        return EncoderLayer(
            qkv=_stacked(qkv),
            output=self._linear(prefix + "attention.output.dense", hidden, hidden),
            up=self._linear(prefix + "intermediate.dense", inner, hidden),
            down=self._linear(prefix + "output.dense", hidden, inner),
            attention_norm=self.vector(prefix + "attention.output.LayerNorm.weight"),
            attention_norm_bias=self.vector(prefix + "attention.output.LayerNorm.bias"),
            output_norm=self.vector(prefix + "output.LayerNorm.weight"),
            output_norm_bias=self.vector(prefix + "output.LayerNorm.bias"),
        )

    def _linear(self, name: str, out: int, width: int) -> DenseLinear:
        weight, bias = self._get(name + ".weight"), self._get(name + ".bias")
        if weight.shape != (out, width) or bias.shape != (out,):
            raise InvalidRequest(f"{name} is {list(weight.shape)}, not {[out, width]}")
        return DenseLinear(weight.float(), bias.float())

    def _get(self, name: str) -> Tensor:
        tensor = self._tensors.get(self._prefix + name)
        if tensor is None:
            raise InvalidRequest(f"the checkpoint has no {self._prefix + name}")
        return tensor


def _stacked(parts: Sequence[DenseLinear]) -> DenseLinear:
    biases = [part.bias for part in parts if part.bias is not None]
    return DenseLinear(torch.cat([part.weight for part in parts]), torch.cat(biases))


def hidden_states(weights: EncoderWeights, ids: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
    """Last states [batch, length, hidden] of `ids` [batch, length], each of its kind; `mask` is True where a
    token is. Linear maps compute in the dtype of their weights."""
    words = F.embedding(ids, weights.words) + F.embedding(kinds, weights.kinds)  # [batch, length, hidden]
    hidden = _norm(weights, words + weights.positions[: ids.shape[1]], weights.norm, weights.norm_bias)
    attend = mask[:, None, None, :]  # [batch, heads, queries, keys]
    for layer in weights.layers:
        attended = _linear(layer.output, _attend(_linear(layer.qkv, hidden), attend, weights.heads))
        hidden = _norm(weights, hidden + attended, layer.attention_norm, layer.attention_norm_bias)
        inner = F.gelu(_linear(layer.up, hidden))
        hidden = _norm(
            weights, hidden + _linear(layer.down, inner), layer.output_norm, layer.output_norm_bias
        )
    return hidden


def _attend(qkv: Tensor, attend: Tensor, heads: int) -> Tensor:
    batch, length, width = qkv.shape
    split = qkv.view(batch, length, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(split[0], split[1], split[2], attn_mask=attend)
    return mixed.transpose(1, 2).reshape(batch, length, width // 3)


def _linear(linear: DenseLinear, value: Tensor) -> Tensor:
    """Map linearly in the arithmetic of the weights; what goes in and comes out is the same for all."""
    bias = None if linear.bias is None else linear.bias.to(linear.weight.dtype)
    return F.linear(value.to(linear.weight.dtype), linear.weight, bias).to(value.dtype)


def _norm(weights: EncoderWeights, value: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(value, weight.shape, weight, bias, weights.norm_eps)
