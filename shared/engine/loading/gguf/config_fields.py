"""Metadata of a GGUF file as the fields of the config.json that its model had before it was converted."""

from __future__ import annotations

from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.gguf.architecture_fields import ARCHITECTURES, Fields
from shared.engine.loading.gguf.header import GgufHeader
from shared.engine.loading.gguf.model_metadata import ModelMetadata
from shared.engine.loading.gguf.rope_fields import rope_fields


def config_fields(header: GgufHeader) -> Fields:
    """Raises InvalidRequest, naming the key or the architecture that cannot be read."""
    metadata = ModelMetadata(header)
    read = ARCHITECTURES.get(metadata.architecture)
    if read is None:
        raise header.refused(
            f"architecture {shown(metadata.architecture)} is not supported; "
            f"use one of {', '.join(ARCHITECTURES)}"
        )
    return {**_of_every_model(metadata), **read(metadata)}


def _of_every_model(metadata: ModelMetadata) -> Fields:
    header = metadata.header
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise header.refused("it has no matrix token_embd.weight; give the file of a language model")
    num_heads = metadata.integer("attention.head_count")
    hidden_size = metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", hidden_size // num_heads)
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        raise header.refused("its values have another length than its keys; no model that is read has that")
    rotary_dim = metadata.integer("rope.dimension_count", head_dim)
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "num_hidden_layers": metadata.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer("context_length"),
        "rms_norm_eps": metadata.number(_epsilon_key(metadata)),
        # Half a dimension more, so that multiplying it out cannot end just below.
        "partial_rotary_factor": 1.0 if rotary_dim == head_dim else (rotary_dim + 0.5) / head_dim,
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
        "rope_scaling": rope_fields(metadata, rotary_dim),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
    }


def _epsilon_key(metadata: ModelMetadata) -> str:
    """Return the key of the norms' epsilon: those of Cohere take the mean away."""
    return f"attention.layer_norm_{'' if metadata.architecture == 'cohere2' else 'rms_'}epsilon"
