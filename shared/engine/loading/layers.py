"""The weights of a model in the form that every backend takes them. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shared.engine.loading.linear import LinearMap


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(act(gate) * up); gate's rows come first in `gate_up`, then up's."""

    gate_up: LinearMap  # [2 * intermediate, hidden]
    down: LinearMap  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class MoeMlp:
    router: Tensor  # [experts, hidden] in the model's dtype
    experts: tuple[DenseMlp, ...]
    router_bias: Tensor | None = None  # [experts] in the model's dtype
    choice_bias: Tensor | None = None  # float32 [experts]
    shared: DenseMlp | None = None
    shared_gate: Tensor | None = None  # [1, hidden] in the model's dtype


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """The weights of multi-head latent attention besides `qkv` and `output`; see `LatentConfig`."""

    query_up: LinearMap | None  # [heads * query_dim, query_rank]; None: `qkv` makes the queries
    key_up: Tensor  # [heads, plain_dim, rank] in the model's dtype
    value_up: Tensor  # [heads, rank, value_dim] in the model's dtype


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Norm weights are float32 with the config's `norm_offset` already added.

    With `latent`, `qkv` is [heads * query_dim or query_rank, then key_dim; hidden], and the norms of queries
    and keys are those of the query_rank numbers and of the latent.
    """

    attention_in_norm: Tensor | None  # [hidden]; None where `norms` is "post"
    qkv: LinearMap  # [(heads + 2 * kv_heads) * head_dim, hidden]: all queries, all keys, all values
    query_norm: Tensor | None  # [head_dim] or [heads * head_dim], by the config's `qk_norm`
    key_norm: Tensor | None
    output: LinearMap  # [hidden, heads * attended_dim]
    attention_out_norm: Tensor | None  # [hidden]; applied before the residual is added
    mlp_in_norm: Tensor | None  # also None where `norms` is "shared"
    mlp: DenseMlp | MoeMlp
    mlp_out_norm: Tensor | None
    sinks: Tensor | None = None  # float32 [heads]
    latent: LatentWeights | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embedding: Tensor  # [vocab, hidden] in the model's dtype
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden] float32, offset added
    head: LinearMap  # [vocab, hidden]; shares the embedding's memory when tied and dense
