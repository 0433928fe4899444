"""An adapter's weights in the layout of adapter.h."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shared.engine.loading.adapter import AdaptedMatrix, AdapterWeights, LowRank
from shared.engine.loading.config import ModelConfig
from shared.engine.native.library import LowRankShape
from shared.engine.native.linear import PANEL

ADAPTED_MATRICES: tuple[AdaptedMatrix, ...] = ("qkv", "output", "gate_up", "down")
_LANES = 16
_RANK_TILE = 4
_VECTOR_BYTES = 64
_HUGE_PAGE_BYTES = 2 << 20


class _RankSpan(NamedTuple):
    """Outputs [first_out, end_out) of a matrix are of a module with ranks [first_rank, end_rank)."""

    first_out: int
    end_out: int
    first_rank: int
    end_rank: int


class NativeAdapter:
    """`address`: of its shapes, [layers][matrices], for as long as this lives."""

    def __init__(self, config: ModelConfig, weights: AdapterWeights) -> None:
        num_out = {
            "qkv": (config.num_heads + 2 * config.num_kv_heads) * config.head_dim,
            "output": config.hidden_size,
            "gate_up": 2 * config.intermediate_size,
            "down": config.hidden_size,
        }
        matrices = [
            _pack(layer[matrix], num_out[matrix], gated=matrix == "gate_up") if matrix in layer else None
            for layer in weights.layers
            for matrix in ADAPTED_MATRICES
        ]
        self._arena = _Arena([matrix.parts for matrix in matrices if matrix is not None])
        shapes = (
            LowRankShape()
            if matrix is None
            else LowRankShape(*map(self._arena.address, matrix.parts), matrix.ranks, matrix.num_in)
            for matrix in matrices
        )
        self._shapes = (LowRankShape * len(matrices))(*shapes)
        self.address = ctypes.addressof(self._shapes)

    @property
    def nbytes(self) -> int:
        return self._arena.nbytes


class _Packed(NamedTuple):
    """`parts`: the first four fields of LowRankShape."""

    parts: tuple[Tensor, Tensor, Tensor, Tensor]
    ranks: int
    num_in: int


class _Arena:
    """Tensors one behind the other in the order in which a step reads them, in huge pages where the kernel
    has them: what is read next is fetched before it is asked for. Equal ones, such as tables, are there once.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]]) -> None:
        places: dict[bytes, int] = {}
        self._places: dict[int, int] = {}  # by the identity of a tensor
        self.nbytes = 0
        tensors = [tensor for group in groups for tensor in group]
        for tensor in tensors:
            content = blake2b(_bytes_of(tensor).numpy().data, digest_size=16).digest()
            if content not in places:
                places[content] = self.nbytes
                self.nbytes += -(-tensor.nbytes // _VECTOR_BYTES) * _VECTOR_BYTES
            self._places[id(tensor)] = places[content]
        memory = mmap.mmap(-1, self.nbytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._memory = whole[-whole.data_ptr() % _HUGE_PAGE_BYTES :]
        for tensor in tensors:
            place = self._places[id(tensor)]
            self._memory[place : place + tensor.nbytes] = _bytes_of(tensor)

    def address(self, tensor: Tensor) -> int:
        return self._memory.data_ptr() + self._places[id(tensor)]


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.flatten().view(torch.uint8)


def _pack(parts: Sequence[LowRank], num_out: int, *, gated: bool) -> _Packed:
    step = 4 // parts[0].down.element_size()  # ranks that the kernels add up at once
    widths = [-(-part.rank // step) * step for part in parts]
    ranks = -(-sum(widths) // _RANK_TILE) * _RANK_TILE
    num_in = parts[0].down.shape[1]
    down = parts[0].down.new_zeros(ranks, num_in)
    scales = torch.zeros(ranks)
    up = parts[0].up.new_zeros(num_out, ranks)
    spans: list[_RankSpan] = []
    first = 0
    for part, width in zip(parts, widths, strict=True):
        down[first : first + part.rank] = part.down
        scales[first : first + part.rank] = part.scale
        up[part.first_out : part.first_out + len(part.up), first : first + part.rank] = part.up
        spans.append(_RankSpan(part.first_out, part.first_out + len(part.up), first, first + width))
        first += width
    packed_up, columns = _pack_up(up, _outputs_of_halves(num_out, gated=gated), spans, step)
    return _Packed((_pack_down(down), scales, packed_up, columns), ranks, num_in)


def _outputs_of_halves(num_out: int, *, gated: bool) -> Tensor:
    """int64 [halves of panels, 16]: which output is in which lane, -1 for padding.

    `gated`: a panel has 16 gates and the 16 outputs that belong to them, from the second half of all.
    """
    if not gated:
        outputs = torch.arange(-(-num_out // PANEL) * PANEL)
        return torch.where(outputs < num_out, outputs, -1).view(-1, _LANES)
    half = num_out // 2
    gates = torch.arange(-(-half // _LANES) * _LANES)
    gates = torch.where(gates < half, gates, -1).view(-1, _LANES)
    return torch.stack((gates, torch.where(gates < 0, -1, gates + half)), dim=1).flatten(0, 1)


def _pack_down(down: Tensor) -> Tensor:
    """[ranks, in] -> [ranks / 4, ceil(in / V), 4, V]: V numbers are 64 bytes."""
    width = _VECTOR_BYTES // down.element_size()
    padded = functional.pad(down, (0, -down.shape[1] % width))
    return padded.view(len(down) // _RANK_TILE, _RANK_TILE, -1, width).transpose(1, 2).contiguous()


def _pack_up(up: Tensor, outputs: Tensor, spans: Sequence[_RankSpan], step: int) -> tuple[Tensor, Tensor]:
    """`up` [out, ranks] -> of each half of a panel [ranks / step, 16, step], those ranks that its outputs
    depend on; and int64 [halves, 3]: their first, how many they are, where they begin."""
    lanes = torch.cat((up, up.new_zeros(1, up.shape[1])))[outputs]  # [halves, 16, ranks]; -1 is the last row
    touched = torch.stack(
        [((outputs >= span.first_out) & (outputs < span.end_out)).any(1) for span in spans], dim=1
    )
    columns = torch.zeros(len(outputs), 3, dtype=torch.int64)
    pieces: list[Tensor] = []
    place = 0
    for chosen in torch.unique(touched, dim=0).tolist():  # a few: panels touch one module or two
        own = [span for span, touches in zip(spans, chosen, strict=True) if touches]
        if not own:
            continue
        halves = (touched == torch.tensor(chosen)).all(1).nonzero().flatten()
        first, count = own[0].first_rank, own[-1].end_rank - own[0].first_rank
        piece = lanes[halves, :, first : first + count].reshape(len(halves), _LANES, -1, step).transpose(1, 2)
        pieces.append(piece.flatten())
        columns[halves, 0], columns[halves, 1] = first, count
        columns[halves, 2] = place + torch.arange(len(halves)) * _LANES * count
        place += piece.numel()
    return torch.cat(pieces), columns
