"""Packed weights as a safetensors file: written piece by piece, checked when opened, mapped to be read only.

The header begins the file and is padded with spaces, as the format allows, to the room kept for it: how long
the pieces are shows only when they are packed. Every piece begins at a multiple of ALIGNMENT.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from shared.engine.native.library import PackedShape, free_with
from shared.engine.native.linear import NativeLinear
from shared.engine.native.packing import PackedArray, PackedPart

ALIGNMENT = 64
"""One vector, and one line of the caches."""
MAX_HEADER_BYTES = 100 << 20  # the format's own limit
WHOLE_CHECK_BYTES = 1 << 30
"""A file up to this length is checked whole when it is opened, in a tenth of a second at most; of a longer
file SAMPLES evenly spaced pieces of SAMPLE_BYTES, which find what a crash leaves: stretches never written."""
SAMPLES = 4096
SAMPLE_BYTES = 4096

_ITEM_BYTES = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4}
_MATRIX_PARTS = (
    *(("weights", "U8"), ("scales", "F16"), ("zeros", "U8")),
    *(("bias", "F32"), ("minima", "F16"), ("levels", "U8"), ("bits", "U8")),
)
_MATRIX_FIELDS = ("kind", "out", "width", "group", "gated", "storage")


class PackedFileError(Exception):
    """A file of packed weights cannot be used or written; says why."""


# ---- writing ----------------------------------------------------------------------------------


def write_packed_file(
    file: BinaryIO, key: str, parts: Iterable[tuple[str, PackedPart]], *, header_bytes: int, most_bytes: int
) -> None:
    """Each part is taken, written and dropped. `header_bytes`: the room for the header, its length included.

    Raises PackedFileError where the file would be longer than `most_bytes`, OSError as writing does.
    """
    start = _aligned(header_bytes)
    tensors: dict[str, Any] = {}
    matrices: dict[str, list[int]] = {}
    file.seek(start)
    for name, part in parts:
        if isinstance(part, PackedArray):
            pieces = [(name, part.dtype, list(part.shape), part.address)]
        else:
            packed = part.packed()
            matrices[name] = [getattr(packed, field) for field in _MATRIX_FIELDS]
            pieces = [
                (f"{name}.{suffix}", dtype, [packed.bytes[i] // _ITEM_BYTES[dtype]], packed.parts[i])
                for i, (suffix, dtype) in enumerate(_MATRIX_PARTS)
                if packed.bytes[i]
            ]
        for piece, dtype, shape, address in pieces:
            begin = file.tell() - start
            end = begin + math.prod(shape) * _ITEM_BYTES[dtype]
            if start + _aligned(end) > most_bytes:
                raise PackedFileError(f"the packed weights are longer than the {most_bytes} bytes allowed")
            file.write((ctypes.c_char * (end - begin)).from_address(address))
            tensors[piece] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
            padding = _aligned(end) - end
            if padding:  # the format knows no gaps
                file.write(bytes(padding))
                place = [end, end + padding]
                tensors[f"{piece}.padding"] = {"dtype": "U8", "shape": [padding], "data_offsets": place}
    file.flush()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
        metadata = {"key": key, "matrices": json.dumps(matrices), "content": _content_digest(view[start:])}
    metadata["header"] = _header_digest(metadata, tensors)
    header = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":")).encode()
    if len(header) > start - 8:
        raise PackedFileError(f"a header of {len(header)} bytes does not fit into the {start} kept for it")
    file.seek(0)
    file.write((start - 8).to_bytes(8, "little") + header.ljust(start - 8))
    file.flush()
    os.fsync(file.fileno())  # before it gets its name: no crash of the machine leaves half a file under it


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


# ---- reading ----------------------------------------------------------------------------------


def open_packed_file(kernels: ctypes.CDLL, path: Path, key: str) -> dict[str, PackedPart]:
    """The parts, in the file's memory, which all who open it share and none can write.

    Raises FileNotFoundError where there is none, PackedFileError for one that is not whole, not ours or not
    of this key, OSError where it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = _checked_size(os.fstat(descriptor))
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise PackedFileError("it is shorter than its header")
        metadata, tensors = _checked_header(os.pread(descriptor, length, 8), key, size - 8 - length)
        memory = _MappedFile(kernels, descriptor, size)
    finally:
        os.close(descriptor)
    start = 8 + length
    if start % ALIGNMENT or _content_digest(memory.view()[start:]) != metadata["content"]:
        raise PackedFileError("its content is not what was written")
    return dict(_parts(kernels, memory, start, tensors, json.loads(metadata["matrices"])))


class _MappedFile:
    def __init__(self, kernels: ctypes.CDLL, descriptor: int, size: int) -> None:
        address = kernels.penstock_map(descriptor, size)
        if not address:
            raise PackedFileError(f"its {size} bytes cannot be mapped")
        self.address: int = address
        self._size = size
        unmap: Callable[[int, int], None] = kernels.penstock_unmap
        free_with(self, lambda place: unmap(place, size), address)

    def view(self) -> memoryview:
        return memoryview((ctypes.c_ubyte * self._size).from_address(self.address)).toreadonly()


def _checked_size(status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode) or status.st_size < 8:
        raise PackedFileError("it is no file of weights")
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PackedFileError("somebody else owns it or may write it")
    return status.st_size


def _checked_header(raw: bytes, key: str, content_bytes: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors. Digest, then the bounds of every tensor: each begins where the last one ended."""
    try:
        tensors = json.loads(raw)
        metadata = tensors.pop("__metadata__")
        stated = metadata.pop("header")
        if stated != _header_digest(metadata, tensors):
            raise PackedFileError("its header is damaged")
        if metadata["key"] != key:
            raise PackedFileError("it holds other weights")
        end = 0
        for name, tensor in tensors.items():
            begin, behind = tensor["data_offsets"]
            nbytes = math.prod(tensor["shape"]) * _ITEM_BYTES[tensor["dtype"]]
            if (begin, behind) != (end, end + nbytes) or (begin % ALIGNMENT and ".padding" not in name):
                raise PackedFileError(f"its tensor {name} has no place")
            end = behind
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PackedFileError("its header cannot be read") from error
    if end != content_bytes:
        raise PackedFileError(f"it holds {content_bytes} bytes of weights, not {end}")
    return metadata, tensors


def _parts(
    kernels: ctypes.CDLL,
    memory: _MappedFile,
    start: int,
    tensors: dict[str, Any],
    matrices: dict[str, list[int]],
) -> Iterator[tuple[str, PackedPart]]:
    pieces = {
        name: PackedArray(
            memory.address + start + each["data_offsets"][0], each["dtype"], tuple(each["shape"]), memory
        )
        for name, each in tensors.items()
    }
    for name, fields in matrices.items():
        packed = PackedShape(*fields)
        for i, (suffix, _) in enumerate(_MATRIX_PARTS):
            piece = pieces.pop(f"{name}.{suffix}", None)
            if piece is not None:
                packed.parts[i] = piece.address
                packed.bytes[i] = math.prod(piece.shape) * _ITEM_BYTES[piece.dtype]
        linear = NativeLinear.over(kernels, packed, memory)
        if linear is None:
            raise PackedFileError(f"its matrix {name} has not the parts of one")
        yield name, linear
    yield from pieces.items()  # what is no part of a matrix, paddings among it


# ---- digests ----------------------------------------------------------------------------------


def _header_digest(metadata: dict[str, str], tensors: dict[str, Any]) -> str:
    text = json.dumps([metadata, tensors], separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _content_digest(content: memoryview) -> str:
    digest = xxhash.xxh3_128()
    if len(content) <= WHOLE_CHECK_BYTES:
        digest.update(content)
    else:
        last = len(content) - SAMPLE_BYTES
        for sample in range(SAMPLES):
            place = last * sample // (SAMPLES - 1)
            digest.update(content[place : place + SAMPLE_BYTES])
    return digest.hexdigest()
