"""The forward pass in torch operations: the reference for every other backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shared.engine.batch import Batch, Span
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.loading.adapter import AdaptedMatrix, AdapterWeights
from shared.engine.loading.config import ModelConfig, MoeConfig, RopeConfig
from shared.engine.loading.layers import DenseMlp, LayerWeights, ModelWeights, MoeMlp
from shared.engine.loading.linear import LinearMap
from shared.engine.memory.kv_pool import KvPool
from shared.engine.torch_backend.adapter import AdaptedRows, TorchAdapter, adapted_rows
from shared.engine.torch_backend.attention import (
    SHORT_SPAN_ROWS,
    AttentionPlan,
    LayerView,
    attend,
    plan_attention,
)
from shared.engine.torch_backend.latent import latent_heads, latent_values
from shared.engine.torch_backend.rope import apply_rope, rope_table
from shared.engine.torch_backend.routing import choose_experts


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are computed by the same operations."""

    token_ids: Tensor  # [T]
    angles: dict[RopeConfig, Tensor]  # [T, rotary_dim] of each of the model's ropes
    query_growth: Tensor | None  # [T, 1, 1]; None: queries stay as they are
    plan: AttentionPlan
    adapted: tuple[AdaptedRows, ...]

    def apply(self, linear: LinearMap, rows: Tensor, layer: int, matrix: AdaptedMatrix) -> Tensor:
        """[T, in] -> [T, out], with what the rows' adapters add."""
        out = linear(rows)
        for each in self.adapted:
            each.add(layer, matrix, rows, out)
        return out


class TorchModel:
    """Holds weights and rope tables, no state of any sequence. Runs where the weights are.

    `deterministic`: a row's logits are bitwise equal whatever else is in the batch and however its sequence
    was chunked or cached. Matrix products of several rows are summed in an order that depends on their
    number, so every operation then sees one row: a prompt costs as much per token as decoding alone does.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        pool: KvPool,
        num_positions: int,
        *,
        deterministic: bool = False,
    ) -> None:
        self._config = config
        self._weights = weights
        self._pool = pool
        self._deterministic = deterministic
        self._dtype = TORCH_DTYPES[config.dtype]
        self._device = weights.embedding.device
        self._views = [
            LayerView(group, layer.window_tokens)
            for group, layer in zip(pool.layout.groups.group_of, config.layers, strict=True)
        ]
        self._ropes = {
            rope: rope_table(rope, config.head_dim, num_positions, self._dtype).to(self._device)
            for rope in {layer.rope for layer in config.layers}
            if rope is not None
        }

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """See `Model`. Short spans share one attention call, so the rows are computed short spans first."""
        order = sorted(range(len(batch.spans)), key=lambda i: batch.spans[i].num_rows > SHORT_SPAN_ROWS)
        spans = [batch.spans[index] for index in order]
        rows = _rows_in_order(batch.spans, order)  # computed row -> batch row
        place = torch.empty_like(rows).scatter_(0, rows, torch.arange(len(rows)))  # batch row -> computed row
        token_ids = torch.tensor(batch.token_ids)[rows]
        if self._deterministic:
            lone = [
                span._replace(start=at, num_rows=1) for span in spans for at in range(span.start, span.end)
            ]
            parts = [self._part(token_ids[row : row + 1], [span]) for row, span in enumerate(lone)]
        else:
            parts = [self._part(token_ids, spans)]
        logit_rows = place[torch.tensor(batch.logit_rows, dtype=torch.int64)].to(self._device)
        hidden = self._layers(parts, batch, logit_rows)
        together = torch.split(logit_rows, 1) if self._deterministic else [logit_rows]
        return torch.cat([self._logits(hidden.index_select(0, chosen)) for chosen in together]).cpu()

    def pack_adapter(self, weights: AdapterWeights) -> TorchAdapter:
        """See `AdaptableModel`."""
        return TorchAdapter(weights)

    def embedding_of(self, token_id: int) -> Tensor:
        """Return what the first layer takes in for a token, float32 [hidden] on the CPU."""
        return self._embed(torch.tensor([token_id], device=self._device))[0].float().cpu()

    def close(self) -> None:
        """See `Model`. The weights go with this object."""

    def _part(self, token_ids: Tensor, spans: Sequence[Span]) -> Part:
        positions = torch.tensor([at for span in spans for at in range(span.start, span.end)])
        positions = positions.to(self._device)
        return Part(
            token_ids.to(self._device),
            {rope: table.index_select(0, positions) for rope, table in self._ropes.items()},
            self._query_growth(positions),
            plan_attention(spans, set(self._views), self._dtype, self._device),
            adapted_rows(spans),
        )

    def _query_growth(self, positions: Tensor) -> Tensor | None:
        config = self._config
        if not config.query_growth:
            return None
        spans = torch.floor(positions / config.query_growth_tokens)
        return (1 + config.query_growth * torch.log(1 + spans)).to(self._dtype)[:, None, None]

    def _layers(self, parts: Sequence[Part], batch: Batch, logit_rows: Tensor) -> Tensor:
        """[T, hidden] after the last layer."""
        scale = self._config.residual_scale
        states = [self._embed(part.token_ids) for part in parts]
        for layer, weights in enumerate(self._weights.layers):
            queries = [
                self._project(layer, weights, hidden, part)
                for hidden, part in zip(states, parts, strict=True)
            ]
            if batch.on_kv_written is not None:
                batch.on_kv_written(layer)
            for index, part in enumerate(parts):
                attended = self._attend(layer, queries[index], part.plan)
                mixed = part.apply(weights.output, attended, layer, "output")
                before = states[index]
                hidden = before + self._scaled(self._normed(mixed, weights.attention_out_norm), scale)
                fed = before if self._config.norms == "shared" else hidden
                states[index] = hidden + self._scaled(self._mlp(layer, weights, fed, part), scale)
            if batch.taps is not None and layer in batch.taps.layers:
                room = batch.taps.room(len(logit_rows))
                room[:, batch.taps.layers.index(layer)] = torch.cat(states).index_select(0, logit_rows)
        return torch.cat(states)

    def _embed(self, token_ids: Tensor) -> Tensor:
        return self._scaled(self._weights.embedding.index_select(0, token_ids), self._config.embedding_scale)

    @staticmethod
    def _scaled(rows: Tensor, scale: float) -> Tensor:
        return rows if scale == 1 else rows * scale

    def _project(self, layer: int, weights: LayerWeights, hidden: Tensor, part: Part) -> Tensor:
        """Queries [T, heads, D]; keys and values go straight into the pool."""
        config = self._config
        projected = part.apply(weights.qkv, self._normed(hidden, weights.attention_in_norm), layer, "qkv")
        slots = part.plan.write_slots[self._views[layer].group]
        rope = config.layers[layer].rope
        if config.latent is not None:
            assert rope is not None
            queries, keys = latent_heads(projected, weights, config.latent, part.angles[rope])
            self._pool.store(layer, slots, keys, None)
            return queries
        heads = projected.view(len(hidden), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        queries, keys = heads[:, : config.num_heads], heads[:, config.num_heads : num_rotated]
        if config.qk_norm == "all":
            queries = self._normed(queries.flatten(1), weights.query_norm).view_as(queries)
            keys = self._normed(keys.flatten(1), weights.key_norm).view_as(keys)
        elif config.qk_norm == "head":
            queries = self._normed(queries, weights.query_norm)
            keys = self._normed(keys, weights.key_norm)
        if rope is not None:
            angles = part.angles[rope]
            queries, keys = apply_rope(queries, angles), apply_rope(keys, angles)
        if part.query_growth is not None:
            queries = queries * part.query_growth
        self._pool.store(layer, slots, keys, heads[:, num_rotated:])
        return queries

    def _attend(self, layer: int, queries: Tensor, plan: AttentionPlan) -> Tensor:
        """[T, heads, D] -> [T, heads * D], with latents [T, heads * value_dim]"""
        config, weights = self._config, self._weights.layers[layer]
        parts = [
            attend(
                queries[group.first_row : group.first_row + group.num_rows],
                *self._pool.load(layer, group.slots),
                group,
                scale=config.score_scale,
                softcap=config.attention_softcap,
                sinks=weights.sinks,
            )
            for group in plan.groups[self._views[layer]]
        ]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended if config.latent is None else latent_values(attended, weights, config.latent)

    def _mlp(self, layer: int, weights: LayerWeights, hidden: Tensor, part: Part) -> Tensor:
        """[T, hidden] -> what is added to it."""
        shared = self._config.norms == "shared"
        normed = self._normed(hidden, weights.attention_in_norm if shared else weights.mlp_in_norm)
        if isinstance(weights.mlp, MoeMlp):
            moe = self._config.layers[layer].moe
            assert moe is not None
            out = self._mixture(normed, weights.mlp, moe)
        else:
            inner = self._activated(part.apply(weights.mlp.gate_up, normed, layer, "gate_up"))
            out = part.apply(weights.mlp.down, inner, layer, "down")
        return self._normed(out, weights.mlp_out_norm)

    def _activated(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * intermediate] -> [T, intermediate]"""
        gate, up = gate_up.chunk(2, dim=-1)
        if self._config.activation == "silu":
            return functional.silu(gate) * up
        if self._config.activation == "clamped_swiglu":
            limit = self._config.swiglu_limit
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return gate * torch.sigmoid(self._config.swiglu_slope * gate) * (up + 1)
        return functional.gelu(gate, approximate="tanh") * up

    def _mixture(self, rows: Tensor, mlp: MoeMlp, config: MoeConfig) -> Tensor:
        """Each expert computes the rows that chose it together; sums in fp32, the shared expert first, then
        by ascending expert. The router is computed in fp32: rounding it decides between near-ties."""
        bias = None if mlp.router_bias is None else mlp.router_bias.float()
        logits = functional.linear(rows.float(), mlp.router.float(), bias)  # [T, experts]
        weights, chosen = choose_experts(logits, mlp.choice_bias, config)  # [T, experts_per_token]
        out = self._shared_expert(rows, mlp)
        for expert in torch.unique(chosen).tolist():
            row, rank = torch.where(chosen == expert)
            computed = self._dense(rows.index_select(0, row), mlp.experts[expert]).float()
            out.index_add_(0, row, computed * weights[row, rank, None])
        return out.to(rows.dtype)

    def _shared_expert(self, rows: Tensor, mlp: MoeMlp) -> Tensor:
        """float32 [T, hidden]: zeros where there is none."""
        if mlp.shared is None:
            return torch.zeros_like(rows, dtype=torch.float32)
        out = self._dense(rows, mlp.shared).float()
        if mlp.shared_gate is None:
            return out
        return out * functional.linear(rows.float(), mlp.shared_gate.float()).sigmoid()

    def _dense(self, rows: Tensor, mlp: DenseMlp) -> Tensor:
        return mlp.down(self._activated(mlp.gate_up(rows)))

    def _logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> float32 [R, vocab]"""
        logits = self._weights.head(self._normed(hidden, self._weights.final_norm))
        logits = self._scaled(logits, self._config.logit_scale).float()
        cap = self._config.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def _normed(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        """Norm over the last dimension in fp32; `rows` where the model has no norm here."""
        if weight is None:
            return rows
        if self._config.norm_kind == "layer":
            eps = self._config.rms_norm_eps
            return functional.layer_norm(rows.float(), weight.shape, weight, eps=eps).to(self._dtype)
        normed = functional.rms_norm(rows.float(), weight.shape, weight, self._config.rms_norm_eps)
        return normed.to(self._dtype)


def _rows_in_order(spans: Sequence[Span], order: Sequence[int]) -> Tensor:
    """[T]: the batch's row numbers, span by span in `order`."""
    starts = [0]
    for span in spans:
        starts.append(starts[-1] + span.num_rows)
    return torch.tensor([row for index in order for row in range(starts[index], starts[index + 1])])
