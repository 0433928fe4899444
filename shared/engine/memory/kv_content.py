"""Digest what the values in a KV pool depend on besides the tokens and the way in which they are stored."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from shared.engine.engine_config import EngineConfig, max_model_len
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.config import ModelConfig


def kv_content(config: EngineConfig, model: ModelConfig, num_blocks: int) -> str:
    """32 hex digits, equal where the checkpoint and the rotation of every layer are.

    The rotation is the one in force in a pool of `num_blocks`, since some kinds choose it by the longest
    sequence. How exactly an engine computes (backend, dtype, weights quantized at load) is not covered:
    prefill and decode may differ in that if their operator says so.
    """
    longest = max_model_len(replace(config, kv_blocks=num_blocks), model)
    rotations = [layer.rope.in_force(longest) if layer.rope else "none" for layer in model.layers]
    text = "\n".join([checkpoint_digest(config.model_dir), *rotations])
    return blake2b(text.encode(), digest_size=16).hexdigest()
