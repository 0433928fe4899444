"""`Model` on the C++ kernels: a forward pass is one call, and no row depends on the rows beside it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from shared.engine.batch import Batch
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.loading.config import LayerConfig, ModelConfig, RopeConfig
from shared.engine.loading.layers import DenseMlp, LayerWeights
from shared.engine.loading.linear import DenseLinear, Linear, QuantLinear, dequantize
from shared.engine.memory.kv_pool import KvPool
from shared.engine.native.library import BatchShape, KvWritten, LayerShape, ModelShape, PoolShape, free_with
from shared.engine.native.linear import NativeLinear, pointer
from shared.engine.torch_backend.rope import rope_table
from shared.errors import InternalError

_QK_NORM = {"none": 0, "head": 1, "all": 2}
_ACTIVATION = {"silu": 0, "gelu_tanh": 1}
_KV_KIND = {"float32": 0, "bfloat16": 1, "int8": 2}


class NativeModel:
    """Packs layer by layer, so that a checkpoint and its packed copy are never whole in memory together.

    Logits are in a buffer that the next forward pass overwrites.
    """

    def __init__(
        self,
        kernels: ctypes.CDLL,
        config: ModelConfig,
        layers: Iterable[LayerWeights],
        *,
        embedding: Tensor | None,
        head: Linear,
        final_norm: Tensor,
        pool: KvPool,
        num_positions: int,
        threads: int,
    ) -> None:
        """`embedding` None: the columns of `head` are the embedding, too."""
        self._kernels = kernels
        self._config = config
        self._pool = pool
        self._num_positions = num_positions
        self._linears: list[NativeLinear] = []
        self._kept: list[object] = []  # memory that the kernels point into
        self._ropes: dict[RopeConfig, Tensor] = {}
        self._logits = torch.empty(0, config.vocab_size)
        packed_head = self._pack(head)
        shapes = [self._layer(weights, each) for weights, each in zip(layers, config.layers, strict=True)]
        shape = ModelShape(
            vocab=config.vocab_size,
            hidden=config.hidden_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            qk_norm=_QK_NORM[config.qk_norm],
            activation=_ACTIVATION[config.activation],
            bf16=config.dtype == "bfloat16",
            threads=threads,
            norm_eps=config.rms_norm_eps,
            attention_scale=config.score_scale,
            attention_soft_cap=config.attention_softcap,
            logit_soft_cap=config.logit_softcap,
            embedding_scale=config.embedding_scale,
            embedding=self._keep(embedding),
            head=packed_head,
            final_norm=self._keep(final_norm),
        )
        layout = pool.layout
        memory = PoolShape(
            ctypes.addressof(ctypes.c_char.from_buffer(pool.memory)),
            pool.num_blocks,
            layout.layer_block_bytes,
            _KV_KIND[layout.dtype],
        )
        array_of_layers = (LayerShape * len(shapes))(*shapes)
        handle = kernels.penstock_model(
            ctypes.byref(shape), ctypes.byref(memory), array_of_layers, len(shapes)
        )
        if not handle:
            raise InternalError("no memory for the model; use a smaller one or int4 weights")
        self._handle: int = handle
        free_with(self, kernels.penstock_free_model, handle)

    @property
    def weight_bytes(self) -> int:
        """Of all matrices that a step may read."""
        return sum(linear.nbytes for linear in self._linears)

    def forward(self, batch: Batch) -> Tensor:
        """See `Model`."""
        blocks = array("i")
        first_blocks = array("i")
        for span in batch.spans:
            first_blocks.append(len(blocks))
            blocks.extend(span.blocks)
        token_ids = array("i", batch.token_ids)
        starts = array("i", [span.start for span in batch.spans])
        counts = array("i", [span.num_rows for span in batch.spans])
        logit_rows = array("i", batch.logit_rows)
        num_logits = len(logit_rows)
        if num_logits > len(self._logits):
            self._logits = torch.empty(num_logits, self._config.vocab_size)
        failures: list[BaseException] = []
        shape = BatchShape(
            len(token_ids),
            len(starts),
            num_logits,
            *(
                each.buffer_info()[0]
                for each in (token_ids, starts, counts, first_blocks, blocks, logit_rows)
            ),
            _heard(batch.on_kv_written, failures),
        )
        if self._kernels.penstock_forward(self._handle, ctypes.byref(shape), self._logits.data_ptr()):
            raise InternalError("no memory for the activations of a step; lower max_batch_tokens")
        if failures:
            raise failures[0]
        return self._logits[:num_logits]

    def close(self) -> None:
        """See `Model`. The packed weights go with this object."""

    # --- packing ---

    def _layer(self, weights: LayerWeights, config: LayerConfig) -> LayerShape:
        mlps = [weights.mlp] if isinstance(weights.mlp, DenseMlp) else list(weights.mlp.experts)
        router = None if isinstance(weights.mlp, DenseMlp) else self._pack(DenseLinear(weights.mlp.router))
        gate_ups = self._alike([mlp.gate_up for mlp in mlps])
        downs = self._alike([mlp.down for mlp in mlps])
        gate_up = (ctypes.c_void_p * len(mlps))(*(self._pack(each, gated=True) for each in gate_ups))
        down = (ctypes.c_void_p * len(mlps))(*(self._pack(each) for each in downs))
        self._kept += [gate_up, down]
        rope = None if config.rope is None else self._rope(config.rope)
        return LayerShape(
            attention_in_norm=self._keep(weights.attention_in_norm),
            query_norm=self._keep(weights.query_norm),
            key_norm=self._keep(weights.key_norm),
            attention_out_norm=self._keep(weights.attention_out_norm),
            mlp_in_norm=self._keep(weights.mlp_in_norm),
            mlp_out_norm=self._keep(weights.mlp_out_norm),
            qkv=self._pack(weights.qkv),
            output=self._pack(weights.output),
            router=router,
            gate_up=ctypes.addressof(gate_up),
            down=ctypes.addressof(down),
            rope=pointer(rope),
            rotary_dim=0 if rope is None else rope.shape[1],
            window=config.window_tokens or 0,
            experts=len(mlps),
            experts_per_token=1 if config.moe is None else config.moe.experts_per_token,
            normalize=config.moe is not None and config.moe.normalize,
        )

    def _rope(self, rope: RopeConfig) -> Tensor:
        """float32 [positions, rotary_dim], one for all layers that rotate alike."""
        if rope not in self._ropes:
            table = rope_table(rope, self._config.head_dim, self._num_positions, torch.float32)
            self._ropes[rope] = table.contiguous()
        return self._ropes[rope]

    def _alike(self, linears: Sequence[Linear]) -> list[Linear]:
        """In one format, for experts take the same rows: dense where a checkpoint packed only some."""
        formats = {(each.bits, each.group) if isinstance(each, QuantLinear) else None for each in linears}
        if len(formats) == 1:
            return list(linears)
        dtype = TORCH_DTYPES[self._config.dtype]
        return [
            DenseLinear(dequantize(each, dtype), each.bias) if isinstance(each, QuantLinear) else each
            for each in linears
        ]

    def _pack(self, linear: Linear, *, gated: bool = False) -> int:
        self._linears.append(NativeLinear(self._kernels, linear, gated=gated))
        return self._linears[-1].handle

    def _keep(self, tensor: Tensor | None) -> int | None:
        if tensor is not None:
            tensor = tensor.contiguous()
            self._kept.append(tensor)
        return pointer(tensor)


def _heard(listener: Callable[[int], None] | None, failures: list[BaseException]) -> ctypes._FuncPointer:
    """`listener` as C calls it. What it raises ends up in `failures`: it cannot pass through C."""
    if listener is None:
        return KvWritten()

    def call(layer: int) -> None:
        if failures:
            return
        try:
            listener(layer)
        except BaseException as error:  # noqa: BLE001  # `forward` raises it
            failures.append(error)

    return KvWritten(call)
