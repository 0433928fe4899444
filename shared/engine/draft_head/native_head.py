"""The draft head on the C++ kernels: all tokens of all rows are one call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from torch import Tensor

from shared.engine.draft_head.weights import DraftHeadWeights
from shared.engine.loading.linear import Linear
from shared.engine.native.library import DraftBlockShape, DraftHeadShape, DraftRowsShape, free_with
from shared.engine.native.linear import NativeLinear
from shared.engine.native.model import NativeModel
from shared.engine.sampling.native_sampler import packed_draw
from shared.engine.scheduling.head_model import DraftRequest, HeadDraft, TapRows
from shared.errors import InternalError


class NativeDraftHead:
    """See `HeadModel`."""

    def __init__(
        self, kernels: ctypes.CDLL, weights: DraftHeadWeights, target: NativeModel, threads: int
    ) -> None:
        self._kernels = kernels
        self._target = target  # whose embeddings it reads
        self._kept: list[object] = []
        self._tap_width = weights.config.tap_width
        config = weights.config
        blocks = (DraftBlockShape * len(weights.blocks))(
            *(
                DraftBlockShape(
                    self._place(block.norm),
                    self._pack(block.gate_up, gated=True),
                    self._pack(block.down),
                )
                for block in weights.blocks
            )
        )
        shape = DraftHeadShape(
            taps=len(config.tap_layers),
            hidden=config.hidden_size,
            vocab=config.draft_vocab_size,
            target_vocab=config.target_vocab_size,
            blocks=len(blocks),
            threads=threads,
            norm_eps=config.rms_norm_eps,
            confidence_bias=weights.confidence_bias,
            taps_norm=self._place(weights.taps_norm),
            state_norm=self._place(weights.state_norm),
            embed_norm=self._place(weights.embed_norm),
            out_norm=self._place(weights.out_norm),
            confidence=self._place(weights.confidence),
            ids=self._place(weights.ids),
            fuse=self._pack(weights.fuse),
            mix=self._pack(weights.mix),
            head=self._pack(weights.head),
        )
        handle = kernels.penstock_draft_head(ctypes.byref(shape), blocks, target.handle)
        if not handle:
            raise InternalError("no memory for the draft head; use a smaller one")
        self._handle: int = handle
        free_with(self, kernels.penstock_free_draft_head, handle)

    @property
    def tap_width(self) -> int:
        """See `HeadModel`."""
        return self._tap_width

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all its matrices."""
        return sum(part.nbytes for part in self._kept if isinstance(part, NativeLinear))

    def draft(
        self, taps: TapRows, requests: Sequence[DraftRequest], chances: Sequence[float]
    ) -> list[HeadDraft]:
        """See `HeadModel`."""
        count, most = len(requests), max(request.length for request in requests)
        columns = list(zip(*requests, strict=True))
        slots, token_ids, lengths = (array("i", columns[place]) for place in (0, 1, 5))
        floors, needs, trusts = (array("f", columns[place]) for place in (6, 7, 8))
        packed = b"".join(packed_draw(each.temperature, each.seed, each.position) for each in requests)
        draws = ctypes.create_string_buffer(packed, len(packed))
        ids, confidences = array("i", [0]) * (count * most), array("f", [0.0]) * (count * most)
        counts, steps, by_bin = array("i", [0]) * count, array("i", [0]) * count, array("f", chances)
        filled = (slots, token_ids, lengths, floors, needs, trusts, by_bin)
        shape = DraftRowsShape(
            count,
            most,
            taps.ctypes.data,
            *(each.buffer_info()[0] for each in filled),
            ctypes.addressof(draws),
            *(each.buffer_info()[0] for each in (ids, confidences, counts, steps)),
        )
        if self._kernels.penstock_draft(self._handle, ctypes.byref(shape)):
            raise InternalError("no memory for drafts; lower max_sequences")
        return [
            HeadDraft(
                tuple(ids[first : first + length]), tuple(confidences[first : first + length]), computed
            )
            for first, length, computed in zip(range(0, count * most, most), counts, steps, strict=True)
        ]

    def _pack(self, linear: Linear, *, gated: bool = False) -> int:
        packed = NativeLinear.pack(self._kernels, linear, gated=gated)
        self._kept.append(packed)
        return packed.handle

    def _place(self, tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()
