"""Ministral: Mistral with windows on some layers. Ministral 3: queries grow with the length of the context.
Of Mistral 3, which sees, the text model is read."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, decoder, windowed_layers, with_windows
from shared.engine.loading.families.mistral import read as read_mistral
from shared.engine.loading.families.raw_config import RawConfig, token_ids
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=8, sliding_window=4096)
    model = decoder(raw)
    return with_windows(raw, model, windowed_layers(raw, model.num_layers, lambda _: True))


def read_ministral3(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-5)
    rope = RawConfig(raw.part("rope_scaling") or raw.part("rope_parameters"), raw.dtype)
    model = with_windows(raw, decoder(raw))
    growth = rope.optional_number("llama_4_scaling_beta")
    if growth is None:
        return model
    context = rope.integer("original_max_position_embeddings", model.max_position_embeddings)
    return replace(model, query_growth=growth, query_growth_tokens=context)


def read_text_model(raw: RawConfig) -> ModelConfig:
    text = raw.part("text_config")
    fields = {**raw.fields, **text, "architectures": raw.fields["architectures"]}
    raw = RawConfig(fields, raw.dtype, raw.eos_token_ids or token_ids(fields, "eos_token_id"))
    if text.get("model_type") == "ministral3":
        return read_ministral3(raw)
    return read_mistral(raw)


FAMILY = Family("MinistralForCausalLM", read)
MINISTRAL3 = Family("Ministral3ForCausalLM", read_ministral3)
MISTRAL3_WITH_VISION = Family(
    "Mistral3ForConditionalGeneration",
    read_text_model,
    prefix="language_model.model.",
    head="language_model.lm_head",
    ignored=("vision_tower.", "multi_modal_projector."),
)
