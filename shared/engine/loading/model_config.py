"""The shape of one model: what every backend computes from. Data only; `config.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.engine.loading.layer_groups import LayerGroups

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of the first `rotary_dim` dimensions of a head. `rope.py` makes one vector of inverse
    frequencies and one factor of it, whatever its kind.

    default: theta alone. linear: positions / factor. dynamic: theta grows once a sequence may be longer than
    `original_max_position_tokens`. llama3, yarn: long wavelengths / factor, short ones kept, a blend between.
    longrope: one divisor per frequency, `long_factors` once a sequence may be longer than
    `original_max_position_tokens`, else `short_factors`.
    """

    theta: float
    rotary_dim: int
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position_tokens: int = 8192
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()  # longrope, [rotary_dim / 2]
    long_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0  # multiplies cosines and sines

    def is_long(self, longest: int) -> bool:
        """longrope: whether sequences of up to `longest` tokens take the long factors, all of them."""
        return longest > self.original_max_position_tokens

    def stretched_tokens(self, longest: int) -> int:
        """dynamic: the length to which the rotation is stretched for sequences of up to `longest` tokens."""
        return max(longest, self.original_max_position_tokens)

    def in_force(self, longest: int) -> str:
        """Return, as text, the rotation of all sequences of a pool where they have up to `longest` tokens:
        keys that were turned by two of them are the same exactly when the texts are."""
        by_length = {"longrope": self.is_long(longest), "dynamic": self.stretched_tokens(longest)}
        return f"{self} {by_length.get(self.kind, '')}"


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A sparse MLP: each token goes to the `experts_per_token` experts that score highest.

    scores: what a router's logits become, "softmax" over all experts or "sigmoid" of each. They weight what
    the experts put out: with `normalize` those of a token's experts are scaled to sum to one, and all are
    multiplied by `scale`. choice_bias: a learned bias per expert is added to the scores when experts are
    chosen, and only then (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).

    The experts lie in `num_groups` groups of neighbours, and a token's come from the `groups_per_token` of
    them that have the largest sum of their `group_best` best scores.

    shared_intermediate_size: of an MLP beside the experts that every token meets, 0: none. shared_gate: what
    it puts out is multiplied by the sigmoid of a learned product with the token. router_bias, expert_bias:
    the router and the matrices of the experts have biases, the shared MLP has none.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalize: bool
    scores: Literal["softmax", "sigmoid"] = "softmax"
    choice_bias: bool = False
    scale: float = 1.0
    num_groups: int = 1
    groups_per_token: int = 1
    group_best: int = 1
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (MLA; DeepSeek-V2, arXiv:2405.04434, section 2.1): a token keeps one latent
    of `rank` numbers, of which the keys and values of all heads could be made, and one key of `rope_dim`
    numbers that rotates and that all heads share.

    Attention is computed on what is kept: one KV head, whose keys are the latent and the rotated key, and
    whose values are the latent. Of a head's query, `plain_dim` dimensions do not rotate; the matrix that
    would make keys of latents takes them to `rank`. What a head attends to, `rank` wide, becomes `value_dim`
    by the matrix that would make values.

    query_rank: queries are made of as many numbers, which have a norm of their own; None: of the token at
    once. norm_eps: of that norm and of the latent's.
    """

    rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None = None
    norm_eps: float = 1e-6

    @property
    def query_dim(self) -> int:
        """The width of one head's query as the weights make it."""
        return self.plain_dim + self.rope_dim

    @property
    def key_dim(self) -> int:
        """The width of what a token keeps."""
        return self.rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The settings that may differ from layer to layer. `rope` None: no positions. `window_tokens` n: a row
    sees itself and the n - 1 tokens before it; None: all before it. `moe` None: a dense MLP."""

    rope: RopeConfig | None
    window_tokens: int | None = None
    moe: MoeConfig | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one model. `dtype` is the one that the engine computes in.

    norms: "pre" normalises what goes into attention and MLP, "post" what comes out of them, "both" both;
    with "shared" one norm goes into attention and MLP alike, and both of them are added together.
    norm_kind: "rms", or "layer", which takes the mean away first.
    qk_norm: "none", "head" (each head by itself) or "all" (all query heads as one vector,
    all key heads as one); it comes before the rotary embedding.
    norm_offset is added to every norm weight (Gemma stores w - 1), norms are computed in float32.
    attention_sinks: each head has a learned score that no key has and that takes its share of the softmax.
    activation: "silu" and "gelu_tanh" of the gate times what goes up; "clamped_swiglu", of gpt-oss:
    gate * sigmoid(swiglu_slope * gate) * (up + 1), the gate clamped to at most swiglu_limit and up to
    [-swiglu_limit, swiglu_limit] before.
    embedding_scale multiplies the embedding in the model's dtype, it is already rounded to it.
    residual_scale multiplies what attention and MLP put out before it is added to the residual stream.
    logit_scale multiplies the logits, before a soft-cap.
    neighbours_rotate: the checkpoint's heads have the two dimensions that rotate together side by side; they
    are put half a rotation apart at load, where every backend has them.
    query_growth: behind position `query_growth_tokens` n, queries at position p are multiplied by
    1 + query_growth * log(1 + floor(p / n)), which keeps long contexts in focus.
    latent: every layer attends to compressed KV; `num_kv_heads` is 1 and `head_dim` what a token keeps.
    quantization: `quantization_config` of a checkpoint whose linears are stored packed, None of a plain one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    layers: tuple[LayerConfig, ...]
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norms: Literal["pre", "post", "both", "shared"] = "pre"
    norm_kind: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    qk_norm: Literal["none", "head", "all"] = "none"
    activation: Literal["silu", "gelu_tanh", "clamped_swiglu"] = "silu"
    swiglu_slope: float = 1.702
    swiglu_limit: float = 7.0
    attention_sinks: bool = False
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    attention_softcap: float = 0.0  # 0: none; else cap * tanh(score / cap)
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    neighbours_rotate: bool = False
    query_growth: float = 0.0
    query_growth_tokens: int = 1
    latent: LatentConfig | None = None
    quantization: Mapping[str, Any] | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def layer_groups(self) -> LayerGroups:
        """Return which layers share blocks of KV."""
        return LayerGroups.of([layer.window_tokens for layer in self.layers])

    @property
    def attended_dim(self) -> int:
        """Return how many numbers a head hands to the output matrix."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @property
    def score_scale(self) -> float:
        return self.attention_scale or self.head_dim**-0.5
