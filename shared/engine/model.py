"""The forward pass in torch operations: the reference for every other backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shared.engine.attention import SHORT_SPAN_ROWS, AttentionPlan, attend, plan_attention, write_kv
from shared.engine.batch import Batch, Span
from shared.engine.config import ModelConfig
from shared.engine.kv_pool import TORCH_DTYPES, KvPool
from shared.engine.layers import DenseMlp, LayerWeights, ModelWeights
from shared.engine.rope import apply_rope, rope_table


class TorchModel:
    """Holds weights and rope tables, no state of any sequence."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, pool: KvPool, num_positions: int) -> None:
        self._config = config
        self._weights = weights
        self._pool = pool
        self._dtype = TORCH_DTYPES[config.dtype]
        rope = config.layers[0].rope
        assert rope is not None
        self._rope = rope_table(rope, config.head_dim, num_positions, self._dtype)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """See `Model`. Short spans share one attention call, so the rows are computed short spans first."""
        order = sorted(range(len(batch.spans)), key=lambda i: batch.spans[i].num_rows > SHORT_SPAN_ROWS)
        spans = [batch.spans[index] for index in order]
        rows = _rows_in_order(batch.spans, order)  # computed row -> batch row
        place = torch.empty_like(rows).scatter_(0, rows, torch.arange(len(rows)))  # batch row -> computed row
        return self._compute(
            torch.tensor(batch.token_ids)[rows],
            torch.tensor([position for span in spans for position in range(span.start, span.end)]),
            plan_attention(spans, self._dtype),
            place[torch.tensor(batch.logit_rows, dtype=torch.int64)],
            batch.on_kv_written,
        )

    def _compute(
        self,
        token_ids: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        logit_rows: Tensor,
        on_kv_written: Callable[[int], None] | None,
    ) -> Tensor:
        hidden = self._weights.embedding.index_select(0, token_ids)  # [T, hidden]
        rope = self._rope.index_select(0, positions)  # [T, head_dim]
        for layer, weights in enumerate(self._weights.layers):
            rows = self._pool.rows[layer]
            queries = self._project(hidden, weights, rope, plan, rows)
            if on_kv_written is not None:
                on_kv_written(layer)
            hidden = hidden + weights.output(attend(queries, rows, plan, self._config.num_kv_heads))
            hidden = hidden + self._mlp(hidden, weights)
        selected = self._norm(hidden.index_select(0, logit_rows), self._weights.final_norm)
        return self._weights.head(selected).float()

    def _project(
        self, hidden: Tensor, weights: LayerWeights, rope: Tensor, plan: AttentionPlan, layer_rows: Tensor
    ) -> Tensor:
        """Queries [T, heads, D]; keys and values go straight into the pool."""
        config = self._config
        assert weights.attention_in_norm is not None
        normed = self._norm(hidden, weights.attention_in_norm)
        heads = weights.qkv(normed).view(len(hidden), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated = apply_rope(heads[:, :num_rotated], rope)
        write_kv(layer_rows, rotated[:, config.num_heads :], heads[:, num_rotated:], plan)
        return rotated[:, : config.num_heads]

    def _mlp(self, hidden: Tensor, weights: LayerWeights) -> Tensor:
        assert weights.mlp_in_norm is not None
        assert isinstance(weights.mlp, DenseMlp)
        normed = self._norm(hidden, weights.mlp_in_norm)
        gate, up = weights.mlp.gate_up(normed).chunk(2, dim=-1)
        return weights.mlp.down(functional.silu(gate) * up)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in fp32."""
        normed = functional.rms_norm(hidden.float(), (hidden.shape[-1],), weight, self._config.rms_norm_eps)
        return normed.to(self._dtype)


def _rows_in_order(spans: Sequence[Span], order: Sequence[int]) -> Tensor:
    """[T]: the batch's row numbers, span by span in `order`."""
    starts = [0]
    for span in spans:
        starts.append(starts[-1] + span.num_rows)
    return torch.tensor([row for index in order for row in range(starts[index], starts[index + 1])])
