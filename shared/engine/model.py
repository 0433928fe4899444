"""The Llama forward pass over a ragged batch of token rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from shared.engine.attention import AttentionPlan, attend, write_kv
from shared.engine.config import ModelConfig
from shared.engine.kv_pool import TORCH_DTYPES, KvPool
from shared.engine.rope import apply_rope, rope_table
from shared.engine.weights import LayerWeights, ModelWeights


class LlamaModel:
    """Computes logits and writes KV. Holds weights and the rope table, no state of any sequence."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, num_positions: int) -> None:
        self._config = config
        self._weights = weights
        self._rope = rope_table(config.rope, config.head_dim, num_positions, TORCH_DTYPES[config.dtype])

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        pool: KvPool,
        logit_rows: Tensor,
        on_kv_written: Callable[[int], None] | None = None,
    ) -> Tensor:
        """`token_ids`, `positions` [T] int64 -> float32 logits [R, vocab] of the rows `logit_rows` [R].

        `on_kv_written(layer)` is called as soon as a layer's K and V of all rows are in the pool.
        """
        hidden = self._weights.embedding.index_select(0, token_ids)  # [T, hidden]
        rope = self._rope.index_select(0, positions)  # [T, head_dim]
        for layer, weights in enumerate(self._weights.layers):
            queries = self._project(hidden, weights, rope, plan, pool.rows[layer])
            if on_kv_written is not None:
                on_kv_written(layer)
            mixed = attend(queries, pool.rows[layer], plan, self._config.num_kv_heads)
            hidden = hidden + functional.linear(mixed, weights.output, weights.output_bias)
            hidden = hidden + self._mlp(hidden, weights)
        selected = self._norm(hidden.index_select(0, logit_rows), self._weights.final_norm)
        return functional.linear(selected, self._weights.head).float()

    def _project(
        self, hidden: Tensor, weights: LayerWeights, rope: Tensor, plan: AttentionPlan, layer_rows: Tensor
    ) -> Tensor:
        """Queries [T, heads, D]; keys and values go straight into the pool."""
        config = self._config
        normed = self._norm(hidden, weights.input_norm)
        heads = functional.linear(normed, weights.qkv, weights.qkv_bias).view(
            len(hidden), -1, config.head_dim
        )
        num_rotated = config.num_heads + config.num_kv_heads
        rotated = apply_rope(heads[:, :num_rotated], rope)
        write_kv(layer_rows, rotated[:, config.num_heads :], heads[:, num_rotated:], plan)
        return rotated[:, : config.num_heads]

    def _mlp(self, hidden: Tensor, weights: LayerWeights) -> Tensor:
        normed = self._norm(hidden, weights.mlp_norm)
        gate, up = functional.linear(normed, weights.gate_up, weights.gate_up_bias).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, weights.down, weights.down_bias)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in fp32, rounded to the model's dtype before the weight, as transformers does."""
        normed = functional.rms_norm(hidden.float(), (hidden.shape[-1],), None, self._config.rms_norm_eps)
        return normed.to(weight.dtype) * weight
