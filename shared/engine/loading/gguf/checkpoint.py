"""A GGUF file as a checkpoint: its tensors by the names of the model's family, read one by one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.loading.checkpoint import StoredTensor
from shared.engine.loading.gguf.blocks import read_blocks
from shared.engine.loading.gguf.ggml_types import GgmlType
from shared.engine.loading.gguf.header import GgufHeader
from shared.engine.loading.gguf.parts import read_header
from shared.engine.loading.gguf.tensor_names import TensorSource, tensor_sources
from shared.engine.loading.linear import CodedLinear
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest

CHUNK_BYTES = 8 << 20
"""The part of a tensor that is taken apart at a time: in float32 it is four to seven times as much."""
_PLAIN = {
    "F32": (np.float32, torch.float32),
    "F16": (np.float16, torch.float16),
    "BF16": (np.int16, torch.bfloat16),
}


class GgufCheckpoint:
    """A `Checkpoint` of one GGUF file or of a model's parts. Blocks of quantized weights read as what they
    stand for, in float32 or, rounded once, in `dtype`; `read_blocks` gives them as they are stored.

    Raises NotFound and InvalidRequest as `read_header` does.
    """

    def __init__(self, path: Path, config: ModelConfig, dtype: torch.dtype) -> None:
        header = read_header(path)
        self.sources = tensor_sources(header, config)
        self.tensors = {
            name: StoredTensor(source.place.file, source.shape, _readable_as(source.place.type))
            for name, source in self.sources.items()
        }
        self._header = header
        self._dtype = dtype

    @contextmanager
    def reading(self) -> Iterator[OpenGguf]:
        """Tensors to copy from, until this ends."""
        files: dict[Path, int] = {}
        try:
            for path in sorted({source.place.file for source in self.sources.values()}):
                files[path] = self._opened(path)
            yield OpenGguf(self._header, self.sources, files, self._dtype)
        finally:
            for file in files.values():
                os.close(file)

    @staticmethod
    def _opened(path: Path) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(
                f"{path.name} cannot be used: it cannot be read ({error.strerror})"
            ) from error


class OpenGguf:
    """The tensors of open files, each a copy."""

    def __init__(
        self, header: GgufHeader, sources: dict[str, TensorSource], files: dict[Path, int], dtype: torch.dtype
    ) -> None:
        self._header = header
        self._sources = sources
        self._files = files
        self._dtype = dtype

    def read(self, name: str) -> Tensor:
        """Plain tensors in the dtype of the file. Raises InvalidRequest where the file ends too early."""
        source = self._sources[name]
        kind = source.place.type
        rows = self._rows(source)
        if kind.is_plain:
            numbers, dtype = _PLAIN[kind.name]
            return torch.from_numpy(rows.view(numbers)).view(dtype).reshape(source.shape)
        out = torch.empty(source.shape, dtype=self._dtype)
        flat, step = out.view(len(rows), -1), max(1, CHUNK_BYTES // rows.shape[1])
        for start in range(0, len(rows), step):
            chunk = dequantize(rows[start : start + step], GGMLQuantizationType[kind.name])
            flat[start : start + step].copy_(torch.from_numpy(chunk))
        return out

    def holds_blocks(self, name: str) -> bool:
        return not self._sources[name].place.type.is_plain

    def read_blocks(self, name: str) -> CodedLinear:
        """A matrix as it is stored, where `holds_blocks` says so.

        Raises InvalidRequest for blocks that cannot be used.
        """
        source = self._sources[name]
        return read_blocks(torch.from_numpy(self._rows(source)), source.place.type.name, source.place.name)

    def read_part(self, name: str, index: int) -> Tensor:
        """Entry `index` of the first dimension."""
        return self.read(name)[index]

    def _rows(self, source: TensorSource) -> NDArray[np.uint8]:
        """[rows, bytes of a row]"""
        place = source.place
        if len(place.shape) == 1 and not place.type.is_plain:
            raise self._header.refused(
                f"{place.name} is stored as {place.type.name}, which only matrices are"
            )
        num_rows, start = place.num_rows, place.start
        if source.expert is not None:
            num_rows //= place.shape[0]
            start += source.expert * num_rows * place.row_bytes
        rows = np.empty((num_rows, place.row_bytes), dtype=np.uint8)
        target, done = rows.reshape(-1).data, 0
        while done < len(target):
            count = os.preadv(self._files[place.file], [target[done:]], start + done)
            if count == 0:
                raise InvalidRequest(f"{place.file.name} became shorter while it was read; download it again")
            done += count
        return _model_order(rows, source) if source.interleaved_heads else rows


def _model_order(rows: NDArray[np.uint8], source: TensorSource) -> NDArray[np.uint8]:
    """A bias is one row of numbers, a matrix has a row for each."""
    by_output = rows.reshape(source.place.shape[0], -1)
    pairs = by_output.reshape(source.interleaved_heads, -1, 2, by_output.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _readable_as(kind: GgmlType) -> str:
    """The type of `read`'s answer, in the spelling of safetensors."""
    return kind.name if kind.is_plain else "F32"
