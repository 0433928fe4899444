"""A model family: its architecture's name, how its config is read, what its tensors are called."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shared.engine.loading.families.raw_config import MAX_INTEGER, RawConfig, shown
from shared.engine.loading.families.rope_config import read_rope
from shared.engine.loading.model_config import LayerConfig, ModelConfig, MoeConfig
from shared.errors import InvalidRequest

MAX_LAYERS = 1024
"""The most layers of a model."""
MAX_EXPERTS = 1 << 16
"""The most experts of all layers together. Both are far above what there is: their tensors are listed before
one is read."""

_ACTIVATIONS: dict[object, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names inside one layer, without `.weight`. Several names of one matrix are stacked in that order."""

    attention_in_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    query_down: str = "self_attn.q_a_proj"  # this one to latent_up: of multi-head latent attention
    query_down_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    latent_down: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_up: str = "self_attn.kv_b_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    attention_out_norm: str = "post_attention_layernorm"
    mlp_in_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_out_norm: str = "post_feedforward_layernorm"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"  # one expert's matrices are at experts.N.<one of the next two>
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    choice_bias: str = "mlp.gate.e_score_correction_bias"
    shared_expert: str = "mlp.shared_experts"  # its matrices are called as an expert's are
    shared_gate: str = "mlp.shared_expert_gate"
    sinks: str = "self_attn.sinks"
    interleaved_experts: bool = (
        False  # stacked experts have gates and their partners in turn; see StackedExperts
    )


@dataclass(frozen=True, slots=True)
class Family:
    """`prefix` begins the decoder's tensors, `ignored` those of parts that are not read. `extra_layers`:
    checkpoints hold layers after the last one, which predict further tokens and are not read either."""

    architecture: str
    read: Callable[[RawConfig], ModelConfig]
    names: TensorNames = TensorNames()
    prefix: str = "model."
    head: str = "lm_head"
    ignored: tuple[str, ...] = ()
    extra_layers: bool = False


def decoder(raw: RawConfig, *, activation_field: str = "hidden_act") -> ModelConfig:
    """A plain decoder: norms before attention and MLP, every layer alike, one rope, no biases.

    Raises InvalidRequest with the name of the field that is wrong.
    """
    num_heads = raw.integer("num_attention_heads")
    num_kv_heads = raw.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise InvalidRequest(
            f"config.json: num_attention_heads {num_heads} is not a multiple of "
            f"num_key_value_heads {num_kv_heads}"
        )
    hidden_size = raw.integer("hidden_size")
    head_dim = raw.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise InvalidRequest(f"config.json: head_dim {head_dim} is odd; rotary embeddings need an even one")
    activation = raw.fields.get(activation_field, "silu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise InvalidRequest(
            f"{activation_field} {shown(activation)} is not supported; it must be one of "
            f"{', '.join(map(str, _ACTIVATIONS))}"
        )
    rope = read_rope(raw, head_dim)
    longest = raw.integer("max_position_embeddings")
    if rope.kind == "yarn":
        # Published yarn models state the length before the stretch.
        longest = max(longest, int(rope.original_max_position_tokens * rope.factor))
        if longest > MAX_INTEGER:
            raise InvalidRequest(
                f"config.json: yarn stretches {rope.original_max_position_tokens} tokens by {rope.factor:g}; "
                f"the product must be at most {MAX_INTEGER}"
            )
    vocab_size = raw.integer("vocab_size")
    return ModelConfig(
        architecture=raw.fields["architectures"][0],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=raw.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=raw.number("rms_norm_eps", 1e-6),
        layers=(LayerConfig(rope),) * raw.integer("num_hidden_layers", at_most=MAX_LAYERS),
        max_position_embeddings=longest,
        tie_word_embeddings=raw.flag("tie_word_embeddings"),
        dtype=raw.dtype,
        bos_token_id=raw.token_id("bos_token_id"),
        # Ids outside the vocabulary (some exports write -1 for "none") can never be drawn.
        eos_token_ids=tuple(token_id for token_id in raw.eos_token_ids if 0 <= token_id < vocab_size),
        activation=_ACTIVATIONS[activation],
        quantization=raw.part("quantization_config") or None,
    )


def attention_bias(raw: RawConfig, model: ModelConfig) -> ModelConfig:
    """`model` with the biases that `attention_bias` stands for: of queries, keys, values and output."""
    bias = raw.flag("attention_bias")
    return replace(model, qkv_bias=bias, output_bias=bias)


def with_windows(raw: RawConfig, model: ModelConfig, windowed: Sequence[bool] | None = None) -> ModelConfig:
    """`model` with `sliding_window` on the layers that are `windowed`, by default all; null is none."""
    window = raw.optional_integer("sliding_window")
    chosen = (True,) * model.num_layers if windowed is None else windowed
    layers = zip(model.layers, chosen, strict=True)
    return replace(
        model, layers=tuple(replace(layer, window_tokens=window if own else None) for layer, own in layers)
    )


def windowed_layers(raw: RawConfig, num_layers: int, usual: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return whether each layer is a `sliding_attention` one, by the field `layer_types`; without it, by
    `usual`."""
    stated = raw.fields.get("layer_types")
    if stated is None:
        return tuple(usual(layer) for layer in range(num_layers))
    names = ("full_attention", "sliding_attention")
    if not isinstance(stated, list) or len(stated) != num_layers or not all(each in names for each in stated):
        raise InvalidRequest(
            f"config.json: layer_types must name {' or '.join(names)} for each of {num_layers} layers"
        )
    return tuple(each == "sliding_attention" for each in stated)


def with_experts(model: ModelConfig, moe: MoeConfig, sparse: Sequence[bool] | None = None) -> ModelConfig:
    """`model` with experts instead of the MLP in the layers that are `sparse`, by default all."""
    if moe.experts_per_token > moe.num_experts:
        raise InvalidRequest(
            f"config.json: num_experts_per_tok {moe.experts_per_token} is above the {moe.num_experts} experts"
        )
    _check_groups(moe)
    if moe.num_experts * model.num_layers > MAX_EXPERTS:
        raise InvalidRequest(
            f"config.json: {moe.num_experts} experts in each of {model.num_layers} layers are above the "
            f"{MAX_EXPERTS} that can be read"
        )
    chosen = (True,) * model.num_layers if sparse is None else sparse
    layers = zip(model.layers, chosen, strict=True)
    return replace(model, layers=tuple(replace(layer, moe=moe if own else None) for layer, own in layers))


def _check_groups(moe: MoeConfig) -> None:
    size, rest = divmod(moe.num_experts, moe.num_groups)
    if rest:
        raise InvalidRequest(
            f"config.json: {moe.num_experts} experts cannot be cut into n_group {moe.num_groups} groups"
        )
    if moe.groups_per_token > moe.num_groups:
        raise InvalidRequest(
            f"config.json: topk_group {moe.groups_per_token} is above n_group {moe.num_groups}"
        )
    if moe.group_best > size:
        raise InvalidRequest(
            f"config.json: n_group {moe.num_groups} leaves groups of {size} experts; their {moe.group_best} "
            "best cannot be found"
        )
    if moe.experts_per_token > moe.groups_per_token * size:
        raise InvalidRequest(
            f"config.json: num_experts_per_tok {moe.experts_per_token} is above the "
            f"{moe.groups_per_token * size} experts of topk_group {moe.groups_per_token} groups"
        )


def in_dtype(value: float, dtype: str) -> float:
    """`value` rounded to a model's dtype, half to even."""
    bits = int.from_bytes(struct.pack(">f", value), "big")
    if dtype == "bfloat16":
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    (rounded,) = struct.unpack(">f", bits.to_bytes(4, "big"))
    return float(rounded)
