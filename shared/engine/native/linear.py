"""One packed matrix, in the kernels' memory or over a file's."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear, Linear, in_groups
from shared.engine.loading.superblocks import SuperblockLinear
from shared.engine.native.library import PackedShape, free_with
from shared.errors import InternalError, InvalidRequest

PANEL = 32
GROUP_MULTIPLE = 16  # a vector of the floats that rows are quantized from


class NativeLinear:
    """A matrix in panel layout, to multiply by."""

    def __init__(self, kernels: ctypes.CDLL, handle: int, num_columns: int, memory: object = None) -> None:
        """`memory`: what the matrix lies in where that is not the kernels' own."""
        self._kernels = kernels
        self._memory = memory
        self.handle = handle
        self.num_columns = num_columns
        free_with(self, kernels.penstock_free_linear, handle)

    @classmethod
    def pack(
        cls, kernels: ctypes.CDLL, linear: Linear, *, gated: bool = False, coarse_rows: bool = False
    ) -> NativeLinear:
        """A copy of `linear`; the tensors it came from may go.

        `gated`: the first half of the rows are gates, each to be combined with its partner in the second.
        `coarse_rows`: what meets codes of 8 bits is rounded to 8 bits as well, for half of the products.
        """
        linear = as_packed(linear, gated=gated)
        out, width = linear.shape
        bias = None if linear.bias is None else linear.bias.float().contiguous()
        if isinstance(linear, DenseLinear):
            weight = linear.weight.contiguous()
            handle = kernels.penstock_dense_linear(
                weight.data_ptr(), weight.dtype == torch.bfloat16, pointer(bias), out, width, gated
            )
        elif isinstance(linear, SuperblockLinear):
            parts = [
                part.contiguous()
                for part in (
                    linear.codes,
                    linear.steps,
                    linear.least,
                    linear.scales,
                    linear.minima,
                    linear.bits,
                )
            ]
            handle = kernels.penstock_super_linear(
                *(part.data_ptr() for part in parts), pointer(bias), out, width, gated
            )
        else:
            if linear.group % GROUP_MULTIPLE:
                raise InvalidRequest(
                    f"a quantization group of {linear.group} columns is not a multiple of {GROUP_MULTIPLE}; "
                    "use another group"
                )
            parts = [part.contiguous() for part in (linear.codes, linear.scales, linear.zeros)]
            minima = None if linear.minima is None else linear.minima.contiguous()
            handle = kernels.penstock_quantized_linear(
                *(part.data_ptr() for part in parts),
                pointer(minima),
                pointer(bias),
                out,
                width,
                linear.bits,
                linear.group,
                gated,
                coarse_rows,
            )
        if not handle:
            raise InternalError(f"no memory for a matrix of {out} x {width}; use a smaller model")
        return cls(kernels, handle, out)

    @classmethod
    def over(cls, kernels: ctypes.CDLL, packed: PackedShape, memory: object) -> NativeLinear | None:
        """Return what `packed` describes, where it lies: `memory` keeps that alive. None: its sizes do not
        fit."""
        handle = kernels.penstock_linear_over(ctypes.byref(packed))
        return cls(kernels, handle, packed.out, memory) if handle else None

    def packed(self) -> PackedShape:
        """Valid as long as this is."""
        packed = PackedShape()
        self._kernels.penstock_packed_parts(self.handle, ctypes.byref(packed))
        return packed

    @property
    def nbytes(self) -> int:
        return int(self._kernels.penstock_linear_bytes(self.handle))

    def __call__(self, rows: Tensor, threads: int = 1) -> Tensor:
        """float32 [T, in] -> float32 [T, out], columns in the order of the panels."""
        rows = rows.float().contiguous()
        padded = -(-self.num_columns // PANEL) * PANEL
        out = torch.empty(len(rows), padded)
        if self._kernels.penstock_multiply(self.handle, rows.data_ptr(), len(rows), threads, out.data_ptr()):
            raise InternalError(f"no memory for {len(rows)} rows; multiply fewer at a time")
        return out[:, : self.num_columns]


def as_packed(linear: Linear, *, gated: bool = False) -> Linear:
    """`linear` in the format in which it is packed: of K-quants a panel has one number of bits, and where
    parts of several end within one they become codes in groups."""
    if not isinstance(linear, SuperblockLinear) or (linear.bits == linear.bits[0]).all():
        return linear
    bits = linear.bits
    if gated:
        first, second = bits.chunk(2)
        bits = torch.stack([first.view(-1, 1), second.view(-1, 1)], 1).flatten()
    whole = bits[: len(bits) // PANEL * PANEL].view(-1, PANEL)
    alike = len(bits) % PANEL == 0 and (whole == whole[:, :1]).all()
    return linear if alike else in_groups(linear)


def pointer(tensor: Tensor | None) -> int | None:
    """The address of a tensor's memory; None stays null."""
    return None if tensor is None else tensor.data_ptr()
