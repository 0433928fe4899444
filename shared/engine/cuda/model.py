"""The forward pass on a GPU: torch's matrix products, Triton for what is between them, graphs for decode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from shared.engine.batch import Batch
from shared.engine.cuda.attention_kernel import attend_paged, rows_per_tile
from shared.engine.cuda.graphs import Capture, CudaCapture, GraphRunner, call_eagerly
from shared.engine.cuda.kv_pool import MirroredKvPool
from shared.engine.cuda.linear_kernel import invariant
from shared.engine.cuda.norm_kernel import add_rms_norm, rms_norm
from shared.engine.cuda.paged import paged_kv
from shared.engine.cuda.project_kernel import project
from shared.engine.cuda.step_plan import PagedShape, PromptSpan, StepTensors, plan_step
from shared.engine.cuda.weight_map import map_linears
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.layers import DenseMlp, LayerWeights, ModelWeights
from shared.engine.memory.kv_pool import BLOCK_TOKENS, KvPool
from shared.engine.torch_backend.model import TorchModel

_FLOAT_BYTES = 4
_FLASH_HEAD_DIM = 256


class CudaModel(TorchModel):
    """Holds weights, rope tables and graphs, no state of any sequence.

    Batches of up to `graph_rows` rows replay a graph (0: never), all others run eagerly: short spans through
    the paged kernel, longer ones through flash attention over their gathered keys. With `deterministic` all
    rows take the paged kernel and products whose sums have one order, whatever the batch. On the CPU, where
    only Triton's interpreter can run the kernels, the same code runs with plain calls in place of the graphs.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        pool: KvPool,
        num_positions: int,
        *,
        graph_rows: int,
        deterministic: bool = False,
    ) -> None:
        if deterministic:
            weights = map_linears(weights, invariant)
        super().__init__(config, weights, pool, num_positions, deterministic=deterministic)
        self._shape = PagedShape(
            rows_per_tile=rows_per_tile(config.num_heads // config.num_kv_heads),
            row_split_bytes=config.num_heads * (config.head_dim + 2) * _FLOAT_BYTES,
            all_paged=deterministic or not self._has_flash(),
        )
        self._graphs: GraphRunner | None = None
        # Which expert computes which rows decides the shapes, so a mixture cannot be recorded.
        if graph_rows and all(layer.moe is None for layer in config.layers):
            capture: Capture = CudaCapture() if self._device.type == "cuda" else call_eagerly
            with torch.inference_mode():
                self._graphs = GraphRunner(
                    self._compute, capture, graph_rows, num_positions, pool.layout.groups.count, self._device
                )

    def _has_flash(self) -> bool:
        """Flash attention knows no soft-cap, and on GPUs neither float32 nor wide heads."""
        config = self._config
        fits = config.dtype == "bfloat16" and config.head_dim <= _FLASH_HEAD_DIM
        return not config.attention_softcap and (fits or self._device.type == "cpu")

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """See `Model`."""
        listener = batch.on_kv_written
        publish = self._publisher(batch)
        logits = self._graphs.run(batch) if self._graphs and listener is None else None
        if logits is None:
            step = plan_step(batch, self._shape, self._device)
            logits = self._compute(step, None if listener is None else _both(publish, listener))
        if listener is None:
            for layer in range(self._config.num_layers):
                publish(layer)
        return _to_host(logits)

    def _publisher(self, batch: Batch) -> Callable[[int], None]:
        """Brings what the batch writes to where others read it, layer by layer, if they do."""
        pool = self._pool
        if not isinstance(pool, MirroredKvPool) or not pool.publishes:
            return lambda _: None
        first_last = [(span.start // BLOCK_TOKENS, (span.end - 1) // BLOCK_TOKENS) for span in batch.spans]
        groups = pool.layout.groups
        blocks = [
            sorted(
                {
                    block
                    for span, (first, last) in zip(batch.spans, first_last, strict=True)
                    for block in span.tables[group][first : last + 1]
                }
            )
            for group in range(groups.count)
        ]
        return lambda layer: pool.publish(layer, blocks[groups.group_of[layer]])

    def _compute(self, step: StepTensors, on_kv_written: Callable[[int], None] | None = None) -> Tensor:
        """float32 logits [R, vocab] on the device. A layer's sum joins the residual in the next norm."""
        hidden = self._embed(step.token_ids)  # [T, hidden]
        delta: Tensor | None = None
        for layer, weights in enumerate(self._weights.layers):
            hidden, normed = self._add_norm(hidden, delta, weights.attention_in_norm)
            mixed = weights.output(self._attend_step(normed, layer, step, on_kv_written))
            delta = self._normed(mixed, weights.attention_out_norm)
            hidden, normed = self._add_norm(hidden, delta, weights.mlp_in_norm)
            delta = self._normed(self._feed(normed, layer, weights), weights.mlp_out_norm)
        assert delta is not None
        if step.logit_rows is not None:
            hidden, delta = hidden.index_select(0, step.logit_rows), delta.index_select(0, step.logit_rows)
        return self._logits(hidden + delta)

    def _add_norm(self, hidden: Tensor, delta: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """(hidden + delta, its norm); without a weight the sum is both."""
        if weight is None:
            total = hidden if delta is None else hidden + delta
            return total, total
        if delta is None:
            return hidden, rms_norm(hidden, weight, self._config.rms_norm_eps)
        return add_rms_norm(hidden, delta, weight, self._config.rms_norm_eps)

    def _attend_step(
        self, normed: Tensor, layer: int, step: StepTensors, on_kv_written: Callable[[int], None] | None
    ) -> Tensor:
        """[T, hidden] -> [T, heads * D]: stores K and V of all rows, then each row sees its own keys."""
        config, layer_config = self._config, self._config.layers[layer]
        kv, own = paged_kv(self._pool, layer), step.groups[self._views[layer].group]
        queries = self._project_step(normed, layer, step)
        if on_kv_written is not None:
            on_kv_written(layer)
        parts = [
            attend_paged(
                queries[group.first_row : group.first_row + group.num_rows],
                kv,
                group.rows,
                config.score_scale,
                layer_config.window_tokens,
                config.attention_softcap,
            )
            for group in own.paged
        ]
        for prompt in own.prompts:
            rows = queries[prompt.first_row : prompt.first_row + prompt.num_rows]
            parts.append(self._attend_prompt(rows, layer, prompt))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended.flatten(1)

    def _project_step(self, normed: Tensor, layer: int, step: StepTensors) -> Tensor:
        """Queries [T, heads, D]; keys and values go straight into the pool."""
        config, weights = self._config, self._weights.layers[layer]
        rope = config.layers[layer].rope
        qkv = weights.qkv(normed)
        norms = None
        if weights.query_norm is not None and weights.key_norm is not None:
            if config.qk_norm == "all":
                qkv = self._norm_all_heads(qkv, weights.query_norm, weights.key_norm)
            else:
                norms = (weights.query_norm, weights.key_norm)
        return project(
            qkv.view(len(qkv), -1, config.head_dim),
            config.num_heads,
            norms,
            config.rms_norm_eps,
            None if rope is None else self._ropes[rope],
            step.positions,
            step.groups[self._views[layer].group].slots,
            paged_kv(self._pool, layer),
        )

    def _norm_all_heads(self, qkv: Tensor, query_norm: Tensor, key_norm: Tensor) -> Tensor:
        first_key, first_value = len(query_norm), len(query_norm) + len(key_norm)
        queries = self._normed(qkv[:, :first_key], query_norm)
        keys = self._normed(qkv[:, first_key:first_value], key_norm)
        return torch.cat((queries, keys, qkv[:, first_value:]), dim=1)

    def _attend_prompt(self, queries: Tensor, layer: int, prompt: PromptSpan) -> Tensor:
        """[rows, heads, D] -> [rows, heads, D] over the keys that the first row's window still reaches."""
        window = self._config.layers[layer].window_tokens
        first_key = 0 if window is None else max(0, prompt.start - window + 1)
        keys, values = self._pool.load(layer, prompt.key_slots[first_key:])
        num_keys = len(keys)
        if window is None or prompt.start + prompt.num_rows <= window:
            mask: Tensor = causal_lower_right(prompt.num_rows, num_keys)
        else:
            query = torch.arange(num_keys - prompt.num_rows, num_keys, device=self._device)[:, None]
            key = torch.arange(num_keys, device=self._device)[None, :]
            mask = (key <= query) & (key > query - window)
        out = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=mask,
            scale=self._config.score_scale,
            enable_gqa=self._config.num_heads > self._config.num_kv_heads,
        )
        return out[0].transpose(0, 1)

    def _feed(self, rows: Tensor, layer: int, weights: LayerWeights) -> Tensor:
        """[T, hidden] -> [T, hidden], both without norms."""
        if isinstance(weights.mlp, DenseMlp):
            return self._dense(rows, weights.mlp)
        moe = self._config.layers[layer].moe
        assert moe is not None
        # The router's product is torch's own; row by row it is the same in every batch.
        pieces = torch.split(rows, 1) if self._deterministic else (rows,)
        return torch.cat([self._mixture(piece, weights.mlp, moe) for piece in pieces])

    def _normed(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        return rows if weight is None else rms_norm(rows, weight, self._config.rms_norm_eps)


def _both(first: Callable[[int], None], second: Callable[[int], None]) -> Callable[[int], None]:
    def call(layer: int) -> None:
        first(layer)
        second(layer)

    return call


def _to_host(logits: Tensor) -> Tensor:
    """A copy in pinned memory of its own: the next step overwrites the original."""
    if logits.device.type != "cuda":
        return logits.clone()
    host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
    host.copy_(logits, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return host
