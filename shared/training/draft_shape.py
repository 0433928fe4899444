"""Plan how large a draft is, and which parts of its target it starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.engine.loading.config import ModelConfig
from shared.errors import InvalidRequest
from shared.training.llama import LlamaShape

TARGET_LAYERS_PER_DRAFT_LAYER = 10
MIN_DRAFT_WIDTH = 32
INTERMEDIATE_MULTIPLE = 32
MAX_DRAFT_POSITIONS = 32_768


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A Llama with tied embeddings; layer i starts from layer `layers[i]` of the target."""

    shape: LlamaShape
    layers: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Norms not counted."""
        shape = self.shape
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        layer = shape.hidden_size * (2 * queries + 2 * keys + 3 * shape.intermediate_size)
        return shape.vocab_size * shape.hidden_size + shape.num_hidden_layers * layer


def plan_draft(target: ModelConfig, layers: int = 0, hidden: int = 0) -> DraftPlan:
    """Plan a draft of so many layers and so wide; 0: a tenth of the target's layers, the target's width.

    Raises InvalidRequest for sizes that cannot be.
    """
    num_layers = layers or max(1, target.num_layers // TARGET_LAYERS_PER_DRAFT_LAYER)
    if not 1 <= num_layers <= target.num_layers:
        raise InvalidRequest(
            f"--layers is {num_layers}; the target has {target.num_layers}, so ask for 1 to that"
        )
    size = target.attended_dim
    width = hidden or target.hidden_size - target.hidden_size % size
    if width % size or not MIN_DRAFT_WIDTH <= width <= target.hidden_size:
        raise InvalidRequest(
            f"--hidden is {width}; it must be a multiple of the target's head dimension {size}, "
            f"from {MIN_DRAFT_WIDTH} to {target.hidden_size}"
        )
    heads = width // size
    group = target.num_heads // target.num_kv_heads
    inner = math.ceil(_inner_size(target) * width / target.hidden_size)
    rope = next((layer.rope for layer in target.layers if layer.rope is not None), None)
    shape = LlamaShape(
        vocab_size=target.vocab_size,
        hidden_size=width,
        intermediate_size=math.ceil(inner / INTERMEDIATE_MULTIPLE) * INTERMEDIATE_MULTIPLE,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=next(n for n in range(1, heads + 1) if heads % n == 0 and heads // n <= group),
        max_position_embeddings=min(target.max_position_embeddings, MAX_DRAFT_POSITIONS),
        rope_theta=10_000.0 if rope is None else rope.theta,
        rms_norm_eps=target.rms_norm_eps,
    )
    step = (target.num_layers - 1) / max(1, num_layers - 1)
    return DraftPlan(shape, tuple(round(index * step) for index in range(num_layers)))


def _inner_size(target: ModelConfig) -> int:
    """Return the width of the MLP; with experts, of those that one token meets."""
    moe = target.layers[0].moe
    if moe is None:
        return target.intermediate_size
    return moe.intermediate_size * moe.experts_per_token + moe.shared_intermediate_size
