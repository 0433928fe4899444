"""`Model` on the C++ kernels: a forward pass is one call, and no row depends on the rows beside it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from shared.engine.batch import Batch, PackedAdapter, Span
from shared.engine.loading.adapter import AdapterWeights
from shared.engine.loading.config import LayerConfig, ModelConfig, MoeConfig, RopeConfig
from shared.engine.memory.kv_pool import KvPool
from shared.engine.native.adapter import NativeAdapter
from shared.engine.native.library import BatchShape, KvWritten, LayerShape, ModelShape, PoolShape, free_with
from shared.engine.native.linear import NativeLinear, pointer
from shared.engine.native.packing import NORMS, PackedPart
from shared.engine.torch_backend.rope import rope_table
from shared.errors import InternalError

_QK_NORM = {"none": 0, "head": 1, "all": 2}
_ACTIVATION = {"silu": 0, "gelu_tanh": 1, "clamped_swiglu": 2}
_SCORES = {"softmax": 0, "sigmoid": 1}
_NOBODY_HEARS = KvWritten()
_NO_SPANS: tuple[tuple[Any, ...], ...] = ((),) * len(Span._fields)
_KV_KIND = {"float32": 0, "bfloat16": 1, "int8": 2}


class NativeModel:
    """Logits are in a buffer that the next forward pass overwrites. Weights are only read."""

    def __init__(
        self,
        kernels: ctypes.CDLL,
        config: ModelConfig,
        parts: Mapping[str, PackedPart],
        *,
        pool: KvPool,
        num_positions: int,
        threads: int,
    ) -> None:
        """`parts` are named as `packed_parts` does."""
        self._kernels = kernels
        self._config = config
        self._parts = parts
        self._pool = pool
        self._num_positions = num_positions
        self._kept: list[object] = []  # memory that the kernels point into, besides that of `parts`
        self._ropes: dict[RopeConfig, Tensor] = {}
        self._logits = torch.empty(0, config.vocab_size)
        shapes = [self._layer(index, each) for index, each in enumerate(config.layers)]
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
            swiglu_slope=config.swiglu_slope,
            swiglu_limit=config.swiglu_limit,
            layer_norm=config.norm_kind == "layer",
            shared_norm=config.norms == "shared",
            residual_scale=config.residual_scale,
            logit_scale=config.logit_scale,
            query_growth=config.query_growth,
            query_growth_tokens=config.query_growth_tokens,
            embedding=self._place("embedding"),
            head=self._place("head"),
            final_norm=self._place("final_norm"),
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
    def kernels(self) -> ctypes.CDLL:
        """Return the library that computes it."""
        return self._kernels

    @property
    def handle(self) -> int:
        """Return what the library knows it by, as long as this lives."""
        return self._handle

    @property
    def weight_bytes(self) -> int:
        """The bytes of all matrices that a step may read."""
        return sum(part.nbytes for part in self._parts.values() if isinstance(part, NativeLinear))

    def forward(self, batch: Batch) -> Tensor:
        """See `Model`."""
        of_spans = zip(*batch.spans, strict=True) if batch.spans else iter(_NO_SPANS)
        starts, counts = array("i", next(of_spans)), array("i", next(of_spans))
        blocks, first_blocks = self._tables(starts, next(of_spans))
        token_ids, logit_rows = array("i", batch.token_ids), array("i", batch.logit_rows)
        adapters = _adapters(next(of_spans))
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
            None if adapters is None else ctypes.addressof(adapters),
            _heard(batch.on_kv_written, failures),
        )
        taps = batch.taps
        if taps is not None:
            layers = array("i", taps.layers)
            shape.taps, shape.tap_layer = len(layers), layers.buffer_info()[0]
            shape.tapped = taps.room(num_logits).data_ptr()
        if self._kernels.penstock_forward(self._handle, ctypes.byref(shape), self._logits.data_ptr()):
            raise InternalError("no memory for the activations of a step; lower max_batch_tokens")
        if failures:
            raise failures[0]
        return self._logits[:num_logits]

    def _tables(
        self, starts: Sequence[int], tables: Sequence[Sequence[Sequence[int]]]
    ) -> tuple[array[int], array[int]]:
        """The spans' blocks that layers read, and by group and span where block 0 of the sequence is among
        them, or would be."""
        blocks, first_blocks = array("i"), array("i")
        for group, window in enumerate(self._pool.layout.groups.windows):
            if not window.tokens:
                whole = [of_groups[group] for of_groups in tables]
                first_blocks.extend(accumulate(map(len, whole), initial=len(blocks)))
                first_blocks.pop()  # the end of the last one
                blocks.extend(chain.from_iterable(whole))
                continue
            for start, of_groups in zip(starts, tables, strict=True):
                first = window.first_block(start)
                first_blocks.append(len(blocks) - first)
                blocks.extend(of_groups[group][first:])
        return blocks, first_blocks

    def pack_adapter(self, weights: AdapterWeights) -> NativeAdapter:
        """See `AdaptableModel`."""
        return NativeAdapter(self._config, weights)

    def close(self) -> None:
        """See `Model`. The packed weights go with this object."""

    # --- where the parts lie ---

    def _layer(self, index: int, config: LayerConfig) -> LayerShape:
        name, groups = f"layers.{index}", self._pool.layout.groups
        experts = range(1 if config.moe is None else config.moe.num_experts)
        gate_up = (ctypes.c_void_p * len(experts))(*(self._place(f"{name}.mlp.{i}.gate_up") for i in experts))
        down = (ctypes.c_void_p * len(experts))(*(self._place(f"{name}.mlp.{i}.down") for i in experts))
        self._kept += [gate_up, down]
        rope = None if config.rope is None else self._rope(config.rope)
        return LayerShape(
            **{norm: self._place(f"{name}.{norm}") for norm in NORMS},
            qkv=self._place(f"{name}.qkv"),
            output=self._place(f"{name}.output"),
            router=self._place(f"{name}.router"),
            gate_up=ctypes.addressof(gate_up),
            down=ctypes.addressof(down),
            shared_gate_up=self._place(f"{name}.mlp.shared.gate_up"),
            shared_down=self._place(f"{name}.mlp.shared.down"),
            choice_bias=self._place(f"{name}.choice_bias"),
            sinks=self._place(f"{name}.sinks"),
            rope=pointer(rope),
            rotary_dim=0 if rope is None else rope.shape[1],
            window=config.window_tokens or 0,
            group=groups.group_of[index],
            row=groups.row_of[index],
            **_routing(config.moe),
        )

    def _rope(self, rope: RopeConfig) -> Tensor:
        """float32 [positions, rotary_dim], one for all layers that rotate alike."""
        if rope not in self._ropes:
            table = rope_table(rope, self._config.head_dim, self._num_positions, torch.float32)
            self._ropes[rope] = table.contiguous()
        return self._ropes[rope]

    def _place(self, name: str) -> int | None:
        """Null for what this model does not have."""
        part = self._parts.get(name)
        if part is None:
            return None
        return part.handle if isinstance(part, NativeLinear) else part.address


def _routing(moe: MoeConfig | None) -> dict[str, int | float]:
    """The fields of LayerShape that say how experts are chosen; a dense MLP is the one expert."""
    if moe is None:
        return {"experts": 1, "experts_per_token": 1}
    return {
        "experts": moe.num_experts,
        "experts_per_token": moe.experts_per_token,
        "normalize": moe.normalize,
        "scores": _SCORES[moe.scores],
        "shared_gate": moe.shared_gate,
        "groups": moe.num_groups,
        "groups_per_token": moe.groups_per_token,
        "group_best": moe.group_best,
        "scale": moe.scale,
    }


def _adapters(adapters: Sequence[PackedAdapter | None]) -> ctypes.Array[ctypes.c_void_p] | None:
    """The address of each span's, null where it has none; None where no span has one."""
    if adapters.count(None) == len(adapters):
        return None
    addresses = (each.address if isinstance(each, NativeAdapter) else None for each in adapters)
    return (ctypes.c_void_p * len(adapters))(*addresses)


def _heard(listener: Callable[[int], None] | None, failures: list[BaseException]) -> ctypes._FuncPointer:
    """`listener` as C calls it. What it raises ends up in `failures`: it cannot pass through C."""
    if listener is None:
        return _NOBODY_HEARS

    def call(layer: int) -> None:
        if failures:
            return
        try:
            listener(layer)
        except BaseException as error:  # noqa: BLE001  # `forward` raises it
            failures.append(error)

    return KvWritten(call)
