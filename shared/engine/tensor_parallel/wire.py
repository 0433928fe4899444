"""Encode what rank 0 tells the other ranks, as int64 numbers over a pipe. No pickle, every length checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from shared.engine.batch import Batch, Span
from shared.errors import ProtocolError

MAX_MESSAGE_NUMBERS = 1 << 24  # 128 MiB: far above one step of the largest configuration
_INT = np.dtype("<i8")
_FORWARD, _COPY = 1, 2
_HEADER_NUMBERS = 2  # kind, numbers that follow
_STEP_NUMBERS = 4  # rows, spans, groups of layers, whether a listener hears of every layer
_SPAN_NUMBERS = 2  # start, rows; the blocks of each group follow


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute one batch. `listened`: rank 0 runs it layer by layer, and so must all."""

    token_ids: list[int]
    spans: list[Span]
    listened: bool


@dataclass(frozen=True, slots=True)
class CopyBlock:
    source: int
    target: int


Command = Forward | CopyBlock


def encode_forward(batch: Batch) -> bytes:
    num_groups = len(batch.spans[0].tables)
    head = [len(batch.token_ids), len(batch.spans), num_groups, int(batch.on_kv_written is not None)]
    numbers = [*head, *batch.token_ids]
    for span in batch.spans:
        numbers += (span.start, span.num_rows, *map(len, span.tables))
    for span in batch.spans:
        for blocks in span.tables:
            numbers += blocks
    return _encode(_FORWARD, numbers)


def encode_copy(source: int, target: int) -> bytes:
    return _encode(_COPY, [source, target])


def read_command(stream: BinaryIO) -> Command | None:
    """The next command; None where the stream ends between two. Raises ProtocolError for anything else."""
    header = _read(stream, _HEADER_NUMBERS)
    if header is None:
        return None
    kind, count = header.tolist()
    if not 0 <= count <= MAX_MESSAGE_NUMBERS:
        raise ProtocolError(f"a command of {count} numbers is not from rank 0 of this version")
    body = _read(stream, count)
    if body is None:
        raise ProtocolError("the pipe from rank 0 ended inside a command")
    if kind == _FORWARD:
        return _decode_forward(body)
    if kind == _COPY and count == len(("source", "target")):
        return CopyBlock(int(body[0]), int(body[1]))
    raise ProtocolError(f"command {kind} with {count} numbers is not from rank 0 of this version")


def _encode(kind: int, numbers: list[int]) -> bytes:
    if len(numbers) > MAX_MESSAGE_NUMBERS:
        raise ProtocolError(f"a step of {len(numbers)} numbers is above the limit of {MAX_MESSAGE_NUMBERS}")
    return np.array([kind, len(numbers), *numbers], dtype=_INT).tobytes()


def _read(stream: BinaryIO, count: int) -> NDArray[np.int64] | None:
    wanted = count * _INT.itemsize
    data = stream.read(wanted)
    if len(data) == wanted:
        return np.frombuffer(data, dtype=_INT)
    if data:
        raise ProtocolError("the pipe from rank 0 ended inside a command")
    return None


def _decode_forward(body: NDArray[np.int64]) -> Forward:
    if len(body) < _STEP_NUMBERS:
        raise ProtocolError("a step without its lengths is not from rank 0 of this version")
    num_rows, num_spans, num_groups, listened = body[:_STEP_NUMBERS].tolist()
    width = _SPAN_NUMBERS + num_groups
    first_block = _STEP_NUMBERS + num_rows + num_spans * width
    if min(num_rows, num_spans, num_groups) < 0 or first_block > len(body):
        raise ProtocolError("a step's lengths do not fit the message; the ranks run different versions")
    token_ids = body[_STEP_NUMBERS : _STEP_NUMBERS + num_rows].tolist()
    fields = body[_STEP_NUMBERS + num_rows : first_block].reshape(num_spans, width)
    num_blocks = fields[:, _SPAN_NUMBERS:].sum()
    if (fields < 0).any() or num_blocks != len(body) - first_block or fields[:, 1].sum() != num_rows:
        raise ProtocolError("a step's spans do not fit the message; the ranks run different versions")
    spans = []
    for start, rows, *lengths in fields.tolist():
        tables = []
        for length in lengths:
            tables.append(body[first_block : first_block + length].tolist())
            first_block += length
        spans.append(Span(start, rows, tables))
    return Forward(token_ids, spans, bool(listened))
