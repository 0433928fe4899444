"""Find a model's tensors in a GGUF file, by the names that the model's family has for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shared.engine.loading.families import find_family
from shared.engine.loading.families.family import TensorNames
from shared.engine.loading.gguf.header import GgufHeader, TensorPlace
from shared.engine.loading.gguf.rope_fields import ROPE_TENSORS
from shared.engine.loading.model_config import ModelConfig

_INTERLEAVED = ("llama", "mistral3", "granite", "smollm3")
"""Architectures whose rotated dimensions llama.cpp has beside each other, and their checkpoints do not."""
_SUFFIXES = (".weight", ".bias")


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor of the model in a tensor of the file: all of it, or of stacked experts entry `expert`.

    `interleaved_heads` n: the rows of each of n heads lie as llama.cpp rotates them for some models, the two
    dimensions of a frequency beside each other, where the model has them half a head apart. `is_row`: a
    matrix of one row, which files hold as a vector.
    """

    place: TensorPlace
    expert: int | None = None
    interleaved_heads: int = 0
    is_row: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        if self.is_row and len(self.place.shape) == 1:
            return (1, *self.place.shape)
        return self.place.shape if self.expert is None else self.place.shape[1:]


def tensor_sources(header: GgufHeader, config: ModelConfig) -> dict[str, TensorSource]:
    """Return tensors by the family's names; what the model does not have keeps its name in the file."""
    family = find_family(config.architecture)
    interleaved = header.metadata["general.architecture"] in _INTERLEAVED
    found: dict[str, TensorSource] = {}
    used = set(ROPE_TENSORS)
    whole = {
        "token_embd.weight": family.prefix + "embed_tokens.weight",
        "output_norm.weight": family.prefix + "norm.weight",
        "output.weight": family.head + ".weight",
    }
    for name, ours in whole.items():
        if name in header.tensors:
            found[ours] = TensorSource(header.tensors[name])
            used.add(name)
    for layer in range(config.num_layers):
        prefix = f"{family.prefix}layers.{layer}."
        for part, ours in _layer_parts(family.names):
            for suffix in _SUFFIXES:
                name = f"blk.{layer}.{part}{suffix}"
                if name in header.tensors and name not in used:
                    heads = _interleaved_heads(part, config) if interleaved else 0
                    found[prefix + ours + suffix] = TensorSource(header.tensors[name], None, heads)
                    used.add(name)
        sinks = f"blk.{layer}.attn_sinks.weight"
        if sinks in header.tensors:
            found[prefix + family.names.sinks] = TensorSource(header.tensors[sinks])
            used.add(sinks)
        moe = config.layers[layer].moe
        if moe is not None:
            experts = _stacked_experts(header, family.names, layer, moe.num_experts)
            experts |= _beside_experts(header, family.names, layer)
            found.update({prefix + name: source for name, source in experts.items()})
            used.update(source.place.name for source in experts.values())
    if family.extra_layers:
        used |= {name for name in header.tensors if _layer_of(name) >= config.num_layers}
    found.update({name: TensorSource(place) for name, place in header.tensors.items() if name not in used})
    return found


def _layer_of(name: str) -> int:
    """Return the layer that a tensor of a file belongs to, -1 for none."""
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return int(number) if number.isascii() and number.isdecimal() else -1


def _beside_experts(header: GgufHeader, names: TensorNames, layer: int) -> dict[str, TensorSource]:
    """Find the router's bias, the expert that every token meets, and its gate."""
    parts = zip(("ffn_gate_shexp", "ffn_up_shexp"), names.expert_gate_up, strict=True)
    ours = {f"{part}.weight": f"{names.shared_expert}.{name}.weight" for part, name in parts}
    ours["ffn_down_shexp.weight"] = f"{names.shared_expert}.{names.expert_down}.weight"
    ours["exp_probs_b.bias"] = names.choice_bias
    found = {
        name: TensorSource(header.tensors[f"blk.{layer}.{part}"])
        for part, name in ours.items()
        if f"blk.{layer}.{part}" in header.tensors
    }
    gate = header.tensors.get(f"blk.{layer}.ffn_gate_inp_shexp.weight")
    if gate is not None:
        found[f"{names.shared_gate}.weight"] = TensorSource(gate, is_row=True)
    return found


def _stacked_experts(
    header: GgufHeader, names: TensorNames, layer: int, count: int
) -> dict[str, TensorSource]:
    """Each expert's matrices and biases, by their names in a layer, where the file has `count` experts."""
    found: dict[str, TensorSource] = {}
    for part, ours in _expert_parts(names):
        for suffix in _SUFFIXES:
            place = header.tensors.get(f"blk.{layer}.{part}{suffix}")
            if place is not None and place.shape[:1] == (count,):
                for expert in range(count):
                    found[f"{names.experts}.{expert}.{ours}{suffix}"] = TensorSource(place, expert)
    return found


def _layer_parts(names: TensorNames) -> Iterator[tuple[str, str]]:
    """(in the file, in the family)"""
    yield "attn_norm", names.attention_in_norm
    yield from zip(
        ("attn_q", "attn_k", "attn_v") if len(names.qkv) > 1 else ("attn_qkv",), names.qkv, strict=True
    )
    yield "attn_q_norm", names.query_norm
    yield "attn_k_norm", names.key_norm
    yield "attn_output", names.output
    yield "post_attention_norm", names.attention_out_norm
    yield "ffn_norm", names.mlp_in_norm
    yield from zip(
        ("ffn_gate", "ffn_up") if len(names.gate_up) > 1 else ("ffn_up",), names.gate_up, strict=True
    )
    yield "ffn_down", names.down
    yield "post_ffw_norm", names.mlp_out_norm
    yield "ffn_gate_inp", names.router


def _expert_parts(names: TensorNames) -> Iterator[tuple[str, str]]:
    yield from zip(("ffn_gate_exps", "ffn_up_exps"), names.expert_gate_up, strict=True)
    yield "ffn_down_exps", names.expert_down


def _interleaved_heads(part: str, config: ModelConfig) -> int:
    return {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(part, 0)
