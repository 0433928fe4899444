"""Granite 3, and Granite 4 where it is dense: Llama with scales at the embedding, in attention, before each
sum and at the logits. Mamba layers are refused."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, TensorNames, attention_bias, decoder
from shared.engine.loading.families.raw_config import RawConfig, shown
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest

ATTENTION_LAYERS = ("attention", "full_attention")


def read(raw: RawConfig) -> ModelConfig:
    return _scaled(raw, replace(attention_bias(raw, decoder(raw)), mlp_bias=raw.flag("mlp_bias")))


def read_hybrid(raw: RawConfig) -> ModelConfig:
    """Granite 4: the MLP is the shared one; without `position_embedding_type` rope there are no positions."""
    kinds = raw.fields.get("layer_types") or raw.fields.get("layers_block_type")
    num_layers = raw.integer("num_hidden_layers")
    if not isinstance(kinds, list) or any(kind not in ATTENTION_LAYERS for kind in kinds):
        raise InvalidRequest(
            "config.json: layer_types has layers that are no attention (Mamba): they keep a state instead of "
            "KV, which no pool here holds; use a dense Granite 4, whose layers are all attention"
        )
    if len(kinds) != num_layers:
        raise InvalidRequest(f"config.json: layer_types must name a kind for each of {num_layers} layers")
    if raw.integer("num_local_experts", 8, at_least=0):
        raise InvalidRequest(
            "config.json: num_local_experts of a GraniteMoeHybridForCausalLM must be 0: its experts are not "
            "read; use a dense Granite 4"
        )
    size = raw.integer("shared_intermediate_size", 1024)
    raw = RawConfig({**raw.fields, "intermediate_size": size}, raw.dtype, raw.eos_token_ids)
    model = _scaled(raw, attention_bias(raw, decoder(raw)))
    positions = raw.fields.get("position_embedding_type")
    if positions == "rope":
        return model
    if positions not in (None, "nope"):
        raise InvalidRequest(
            f"config.json: position_embedding_type {shown(positions)} is not supported; "
            "it must be rope or nope"
        )
    return replace(model, layers=tuple(replace(layer, rope=None) for layer in model.layers))


def _scaled(raw: RawConfig, model: ModelConfig) -> ModelConfig:
    return replace(
        model,
        embedding_scale=raw.number("embedding_multiplier", 1.0),
        attention_scale=raw.number("attention_multiplier", 1.0),
        residual_scale=raw.number("residual_multiplier", 1.0),
        logit_scale=1 / raw.number("logits_scaling", 1.0),
    )


FAMILY = Family("GraniteForCausalLM", read)
HYBRID = Family(
    "GraniteMoeHybridForCausalLM",
    read_hybrid,
    TensorNames(gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
)
