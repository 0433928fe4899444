"""The header of a GGUF file, version 2 and 3: metadata, and where each tensor is. Needs no torch.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package has a reader as well; this one
is here because it checks each length and count against the file before it is used, and because it takes a
tenth of a second for a vocabulary for which that one, which makes an array of every string, takes nearly two.
"""

from __future__ import annotations

import math
import stat
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from shared.engine.loading.gguf.ggml_types import OTHER_TYPES, READABLE_TYPES, GgmlType
from shared.engine.loading.gguf.header_bytes import U32, U64, HeaderBytes
from shared.errors import InvalidRequest, NotFound

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16
"""The most entries of metadata."""
MAX_TENSORS = 1 << 17
"""The most tensors of a file."""
MAX_ARRAY_ITEMS = 1 << 21
"""The most items of a list in the metadata."""
MAX_KEY_BYTES = (1 << 16) - 1
"""The longest key of the metadata."""
MAX_TENSOR_NAME_BYTES = 255
"""The longest name of a tensor."""
MAX_DIMENSIONS = 4
"""The most dimensions of a tensor."""
MAX_ALIGNMENT = 1 << 16
"""The largest alignment of tensors."""
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL, _FLOAT32 = 8, 9, 7, 6
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value types of fixed size, in the letters of `struct`."""

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class HeaderArray:
    """Items that lie in the header from byte `start` to `end`."""

    item_type: int
    count: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """`shape` has rows first: a matrix is (out, in). `start`: of its bytes in `file`."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    start: int
    file: Path

    @property
    def num_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.type.block_weights * self.type.block_bytes

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    path: Path
    data: bytes  # the whole header
    metadata: dict[str, Scalar | HeaderArray]
    spans: dict[str, tuple[int, int]]  # of each entry of the metadata in `data`
    tensors: dict[str, TensorPlace]

    def strings(self, key: str) -> list[str]:
        """Empty where there is no such entry. Raises InvalidRequest for what is no array of valid strings."""
        found = self._array(key, _STRING)
        if found is None:
            return []
        strings: list[str] = []
        at, data = found.start, self.data
        try:
            for _ in range(found.count):
                begin = at + U64.size
                at = begin + U64.unpack_from(data, at)[0]
                strings.append(data[begin:at].decode())
        except UnicodeDecodeError as error:
            raise self.refused(f"entry {len(strings)} of {key} is no valid UTF-8") from error
        return strings

    def numbers(self, key: str) -> array[int] | array[float] | None:
        """Return the numbers of an entry, None where there is none. Raises InvalidRequest for another
        type."""
        found = self.metadata.get(key)
        if found is None:
            return None
        if not isinstance(found, HeaderArray) or found.item_type not in _SCALARS:
            raise self.refused(f"{key} is no list of numbers")
        letter = _SCALARS[found.item_type]
        items: array[int] | array[float] = array("B" if letter == "?" else letter)
        items.frombytes(self.data[found.start : found.end])
        return items

    def digest(self, keys: Iterable[str]) -> str:
        """32 hex digits, of these entries of the metadata as they are stored."""
        digest = blake2b(digest_size=16)
        for key in sorted(keys):
            start, end = self.spans[key]
            digest.update(self.data[start:end])
        return digest.hexdigest()

    def refused(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"{self.path.name} cannot be used: {why}")

    def _array(self, key: str, item_type: int) -> HeaderArray | None:
        found = self.metadata.get(key)
        if found is None or (isinstance(found, HeaderArray) and found.item_type == item_type):
            return found
        raise self.refused(f"{key} is no list of strings")


def read_file_header(path: Path) -> GgufHeader:
    """Read the header of one file, which may be a part of a model (`parts.py`).

    Raises NotFound where there is no such file, InvalidRequest with what is wrong in it. Every tensor lies
    within the file when this returns, and no two share a byte.
    """
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # to open a pipe would wait for whoever writes into it
            raise InvalidRequest(f"{path.name} cannot be used: it is no file; name the GGUF file itself")
        with path.open("rb") as file:
            return _read(HeaderBytes(path, file, about.st_size), about.st_size)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {str(path)!r}") from error
    except OSError as error:
        sentence = f"{path.name} cannot be used: it cannot be read ({error.strerror})"
        raise InvalidRequest(sentence) from error


def _read(header: HeaderBytes, file_bytes: int) -> GgufHeader:
    header.skip(len(MAGIC), "its first word")
    if header.data[: len(MAGIC)] != MAGIC:
        raise InvalidRequest(f"{header.path.name} is no GGUF file; give a file that begins with GGUF")
    version = header.number(U32, "its version")
    if version not in VERSIONS:
        big = version & 0xFFFF == 0
        what = (
            "is for machines with the other order of bytes" if big else f"has version {version} of the format"
        )
        raise InvalidRequest(f"{header.path.name} {what}; convert the model again to GGUF version 3")
    num_tensors = _count(header, "tensors", MAX_TENSORS)
    num_entries = _count(header, "entries of metadata", MAX_ENTRIES)
    metadata: dict[str, Scalar | HeaderArray] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(num_entries):
        start = header.at
        key = header.string("a key of its metadata", MAX_KEY_BYTES)
        if key in metadata:
            raise header.damaged(f"{_short(key)} stands in its metadata twice")
        metadata[key] = _value(header, _short(key))
        spans[key] = (start, header.at)
    infos = [_tensor_info(header) for _ in range(num_tensors)]
    alignment = _alignment(header, metadata)
    first = -(-header.at // alignment) * alignment
    tensors = _tensors(header, infos, alignment, first, file_bytes)
    return GgufHeader(header.path, bytes(header.data[: header.at]), metadata, spans, tensors)


def _count(header: HeaderBytes, what: str, at_most: int) -> int:
    count = header.number(U64, f"the number of its {what}")
    if count > at_most:
        raise header.damaged(f"it claims {count} {what}, more than the {at_most} that there may be")
    return count


def _value(header: HeaderBytes, key: str) -> Scalar | HeaderArray:
    kind = header.number(U32, key)
    if kind == _STRING:
        return header.string(key)
    if kind == _ARRAY:
        return _skip_array(header, key)
    if kind not in _SCALARS:
        raise header.damaged(f"{key} has a value of unknown type {kind}")
    layout = struct.Struct("<" + _SCALARS[kind])
    header.skip(layout.size, key)
    (value,) = layout.unpack_from(header.data, header.at - layout.size)
    return _shortest(value) if kind == _FLOAT32 else value


def _skip_array(header: HeaderBytes, key: str) -> HeaderArray:
    item_type = header.number(U32, key)
    count = header.number(U64, key)
    if count > MAX_ARRAY_ITEMS:
        raise header.damaged(
            f"{key} claims {count} items, more than the {MAX_ARRAY_ITEMS} that a list may have"
        )
    start = header.at
    if item_type == _STRING:
        header.skip_strings(count, key)
    elif item_type in _SCALARS:
        header.skip(count * struct.calcsize("<" + _SCALARS[item_type]), key)
    else:
        raise header.damaged(f"{key} is a list of values of type {item_type}, which is not read")
    return HeaderArray(item_type, count, start, header.at)


def _shortest(value: float) -> float:
    """The number with the fewest digits that is this float32: 1e-05, where widening gives 9.99999974e-06."""
    if not math.isfinite(value):
        return value
    written = (float(f"{value:.{digits}g}") for digits in range(6, 10))  # nine digits are always enough
    return next(number for number in written if struct.unpack("<f", struct.pack("<f", number))[0] == value)


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int


def _tensor_info(header: HeaderBytes) -> _TensorInfo:
    name = header.string("the name of a tensor", MAX_TENSOR_NAME_BYTES)
    what = f"what it says of tensor {_short(name)}"
    num_dimensions = header.number(U32, what)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise header.damaged(
            f"tensor {_short(name)} has {num_dimensions} dimensions, not 1 to {MAX_DIMENSIONS}"
        )
    shape = tuple(header.number(U64, what) for _ in range(num_dimensions))
    return _TensorInfo(name, shape[::-1], header.number(U32, what), header.number(U64, what))


def _alignment(header: HeaderBytes, metadata: dict[str, Scalar | HeaderArray]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise header.damaged(f"general.alignment is {alignment!r}, no power of two up to {MAX_ALIGNMENT}")
    return alignment


def _tensors(
    header: HeaderBytes, infos: list[_TensorInfo], alignment: int, first: int, file_bytes: int
) -> dict[str, TensorPlace]:
    tensors: dict[str, TensorPlace] = {}
    for info in infos:
        name = _short(info.name)
        if info.name in tensors:
            raise header.damaged(f"tensor {name} is there twice")
        start = first + info.offset
        tensor = TensorPlace(info.name, info.shape, _ggml_type(header, info), start, header.path)
        if not all(info.shape) or info.shape[-1] % tensor.type.block_weights:
            raise header.damaged(
                f"tensor {name} has shape {info.shape}, whose rows are no blocks of "
                f"{tensor.type.block_weights} weights of {tensor.type.name}"
            )
        if info.offset % alignment:
            raise header.damaged(f"tensor {name} begins at {info.offset}, no multiple of {alignment}")
        if tensor.start + tensor.num_bytes > file_bytes:
            raise header.damaged(
                f"tensor {name} would end at byte {tensor.start + tensor.num_bytes} of {file_bytes}"
            )
        tensors[info.name] = tensor
    end, before = first, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.start):
        if tensor.start < end:
            raise header.damaged(f"tensors {before} and {_short(tensor.name)} lie over each other")
        end, before = tensor.start + tensor.num_bytes, _short(tensor.name)
    return tensors


def _ggml_type(header: HeaderBytes, info: _TensorInfo) -> GgmlType:
    found = READABLE_TYPES.get(info.type_number)
    if found is None:
        stored = OTHER_TYPES.get(info.type_number, f"type {info.type_number}")
        known = ", ".join(each.name for each in READABLE_TYPES.values())
        raise InvalidRequest(
            f"{header.path.name} stores {_short(info.name)} as {stored}, which is not read; "
            f"take a file with {known}"
        )
    return found


def _short(name: str) -> str:
    """Shorten a value for a sentence."""
    return name if 0 < len(name) <= 80 and name.isprintable() else repr(name[:80])
