"""Count how much one step must read and compute at least, from the model's shape alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import LayerConfig, ModelConfig
from shared.engine.loading.packed_checkpoints import packed_format
from shared.engine.loading.quantize import QuantFormat, policy
from shared.engine.memory.kv_pool import KvLayout

_GROUP_BYTES = 3  # a float16 scale and a uint8 zero
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of every matrix that a token meets, head included; not the embedding's rows, norms or biases.

    A sparse MLP counts the experts of one token, whatever the batch: right at batch 1, too few above it.
    `held_bytes` counts all experts and an untied embedding: what memory holds at least.
    """

    model: ModelConfig
    weight_bytes: int
    held_bytes: int
    layer_weights: int  # multiplications of one token, in all layers
    head_weights: int
    kv_token_bytes: int
    arithmetic: str  # the dtype whose products bound this model: "float32" | "bfloat16" | "int8"

    def decode_bytes(self, batch: int, context: int) -> float:
        """Weights once, and the KV that each of `batch` sequences of `context` tokens sees."""
        per_layer = self.kv_token_bytes / self.model.num_layers
        return self.weight_bytes + batch * per_layer * sum(_seen(context, x) for x in self.model.layers)

    def decode_operations(self, batch: int, context: int) -> float:
        pairs = batch * sum(_seen(context, layer) for layer in self.model.layers)
        return 2 * batch * (self.layer_weights + self.head_weights) + self._attention(pairs)

    def prefill_operations(self, prompt_tokens: int) -> float:
        """Count the operations of one prompt, whose last token alone meets the head."""
        pairs = sum(_causal_pairs(prompt_tokens, layer) for layer in self.model.layers)
        return 2 * (prompt_tokens * self.layer_weights + self.head_weights) + self._attention(pairs)

    def _attention(self, pairs: float) -> float:
        """Scores and weighted values of `pairs` (query, key) pairs, for all heads."""
        model = self.model
        value_dim = model.head_dim if model.latent is None else model.latent.rank
        return 2 * pairs * model.num_heads * (model.head_dim + value_dim)


def work_of(engine: EngineConfig, model: ModelConfig, layout: KvLayout) -> StepWork:
    """Count the work of `model` as `engine` holds it; routers count as if quantized with the rest."""
    inside, head_format = _formats(engine, model)
    read = [shape for layer in model.layers for shape in _layer_matrices(model, layer, held=False)]
    held = [shape for layer in model.layers for shape in _layer_matrices(model, layer, held=True)]
    head = (model.vocab_size, model.hidden_size)
    head_bytes = _matrix_bytes(head, head_format, model)
    embedding_bytes = 0 if model.tie_word_embeddings else _matrix_bytes(head, None, model)
    return StepWork(
        model=model,
        weight_bytes=sum(_matrix_bytes(shape, inside, model) for shape in read) + head_bytes,
        held_bytes=sum(_matrix_bytes(shape, inside, model) for shape in held) + head_bytes + embedding_bytes,
        layer_weights=sum(map(math.prod, read)),
        head_weights=math.prod(head),
        kv_token_bytes=layout.num_layers * layout.layer_block_bytes // HASH_BLOCK_TOKENS,
        arithmetic=model.dtype if inside is None else "int8",
    )


def _formats(engine: EngineConfig, model: ModelConfig) -> tuple[QuantFormat | None, QuantFormat | None]:
    """Return how the layers' matrices and the head are stored; None: in the model's dtype."""
    inside = policy(engine.quantization, engine.quant_group, "layer")
    head = policy(engine.quantization, engine.quant_group, "head")
    if model.quantization is not None:  # packed in the checkpoint, where the head usually stays as it was
        codes = packed_format(model.quantization).held_codes
        if codes is not None:
            bits, group = codes
            return QuantFormat(bits, group if group > 0 else model.hidden_size), head
    return inside, head


def _layer_matrices(model: ModelConfig, layer: LayerConfig, *, held: bool) -> Iterator[tuple[int, int]]:
    """(out, in) of the matrices of one layer: those one token meets, or all that are held."""
    yield from _attention_matrices(model)
    inner, experts = model.intermediate_size, 1
    if layer.moe is not None:
        yield layer.moe.num_experts, model.hidden_size
        if layer.moe.shared_gate:
            yield 1, model.hidden_size
        if layer.moe.shared_intermediate_size:
            yield 2 * layer.moe.shared_intermediate_size, model.hidden_size
            yield model.hidden_size, layer.moe.shared_intermediate_size
        inner = layer.moe.intermediate_size
        experts = layer.moe.num_experts if held else layer.moe.experts_per_token
    for _ in range(experts):
        yield 2 * inner, model.hidden_size
        yield model.hidden_size, inner


def _attention_matrices(model: ModelConfig) -> Iterator[tuple[int, int]]:
    latent = model.latent
    yield model.hidden_size, model.num_heads * model.attended_dim
    if latent is None:
        yield (model.num_heads + 2 * model.num_kv_heads) * model.head_dim, model.hidden_size
        return
    queries = model.num_heads * latent.query_dim
    if latent.query_rank is not None:
        yield queries, latent.query_rank
    yield (latent.query_rank or queries) + latent.key_dim, model.hidden_size
    yield model.num_heads * (latent.plain_dim + latent.value_dim), latent.rank


def _matrix_bytes(shape: tuple[int, int], stored: QuantFormat | None, model: ModelConfig) -> int:
    rows, columns = shape
    if stored is None:
        return rows * columns * _ITEM_BYTES[model.dtype]
    return rows * (columns * stored.bits // 8 + math.ceil(columns / stored.group) * _GROUP_BYTES)


def _seen(context: int, layer: LayerConfig) -> int:
    return min(context, layer.window_tokens or context)


def _causal_pairs(num_tokens: int, layer: LayerConfig) -> int:
    window = _seen(num_tokens, layer)
    return window * (window + 1) // 2 + (num_tokens - window) * window
