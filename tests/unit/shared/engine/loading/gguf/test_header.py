"""Headers of GGUF files: what is read of good ones, and the sentence for each thing that can be wrong."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader

from shared.engine.loading.gguf.ggml_types import OTHER_TYPES, READABLE_TYPES
from shared.engine.loading.gguf.header import (
    MAX_ARRAY_ITEMS,
    MAX_ENTRIES,
    MAX_TENSORS,
    GgufHeader,
    HeaderArray,
    read_file_header,
)
from shared.engine.loading.gguf.header_bytes import MAX_HEADER_BYTES, MAX_STRING_BYTES
from shared.errors import InvalidRequest, NotFound
from tests.support.engine import save_shape
from tests.support.engine_families import SHAPES
from tests.support.gguf_files import GgufModel
from tests.support.gguf_tokenizers import sentencepiece_metadata


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def listed(item_type: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", item_type, count) + items


def info(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(
    entries: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensors, values = counts or (len(infos), len(entries))
    written = magic + struct.pack("<IQQ", version, tensors, values) + b"".join([*entries, *infos])
    return written + bytes(-len(written) % 32) + data


def read(folder: Path, content: bytes) -> GgufHeader:
    file = folder / "model.gguf"
    file.write_bytes(content)
    return read_file_header(file)


def test_what_is_read_is_what_the_formats_own_package_reads(tmp_path: Path) -> None:
    model = GgufModel.of(save_shape(tmp_path / "hf", SHAPES["llama"]))
    file = tmp_path / "model.gguf"
    model.write(file, tokenizer=sentencepiece_metadata())
    ours, theirs = read_file_header(file), GGUFReader(file)
    named = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    for key, value in ours.metadata.items():
        if not isinstance(value, HeaderArray):
            assert value == named[key] or value == pytest.approx(named[key], rel=1e-7)
        else:
            assert list(ours.strings(key) if value.item_type == 8 else ours.numbers(key) or ()) == named[key]
    assert ours.metadata.keys() == named.keys()
    places = {tensor.name: (tensor.data_offset, tensor.n_bytes) for tensor in theirs.tensors}
    assert {name: (place.start, place.num_bytes) for name, place in ours.tensors.items()} == places


def test_sizes_and_names_of_the_types_are_those_of_the_package() -> None:
    for number, kind in READABLE_TYPES.items():
        theirs = GGMLQuantizationType(number)
        assert (kind.name, kind.block_weights, kind.block_bytes) == (theirs.name, *GGML_QUANT_SIZES[theirs])
    assert {number: GGMLQuantizationType(number).name for number in OTHER_TYPES} == OTHER_TYPES


def test_a_float_is_the_number_that_somebody_wrote(tmp_path: Path) -> None:
    """Not what a float32 is exactly."""
    entries = [
        entry(f"k{value}", 6, struct.pack("<f", value)) for value in (1e-5, 0.1, 500000.0, 3.4028234e38)
    ]
    assert list(read(tmp_path, header(entries)).metadata.values()) == [1e-5, 0.1, 500000.0, 3.4028235e38]


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file '.*nothing.gguf'"):
        read_file_header(tmp_path / "nothing.gguf")


ROW = [info("a", (4,))]
GOOD = bytes(64)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it ends after 0 bytes, in the middle of its first word"),
        (header(magic=b"GGML"), "is no GGUF file; give a file that begins with GGUF"),
        (header(version=1), "has version 1 of the format; convert the model again to GGUF version 3"),
        (header(version=0x3000000), "is for machines with the other order of bytes"),
        (header(counts=(MAX_TENSORS + 1, 0)), f"it claims {MAX_TENSORS + 1} tensors, more than"),
        (header(counts=(0, MAX_ENTRIES + 1)), f"it claims {MAX_ENTRIES + 1} entries of metadata, more than"),
        (header(counts=(0, 2**64 - 1)), "entries of metadata, more than"),
        (header(counts=(1, 0)), "in the middle of what it says of tensor ''"),
        (header(counts=(0, 1)), "in the middle of"),
        (
            header([struct.pack("<Q", 2**63) + b"k"]),
            "a key of its metadata is said to be 9223372036854775808 bytes",
        ),
        (header([struct.pack("<Q", 1) + b"\xff" + bytes(40)]), "a key of its metadata is no valid UTF-8"),
        (header([entry("k", 4, bytes(4))] * 2), "k stands in its metadata twice"),
        (header([entry("k", 99, bytes(4))]), "k has a value of unknown type 99"),
        (
            header([entry("k", 8, struct.pack("<Q", MAX_STRING_BYTES + 1))]),
            "k is said to be 4194305 bytes long",
        ),
        (
            header([entry("k", 9, listed(4, 2**62))]),
            f"k claims {2**62} items, more than the {MAX_ARRAY_ITEMS}",
        ),
        (header([entry("k", 9, listed(4, MAX_ARRAY_ITEMS))]), "in the middle of k"),
        (header([entry("k", 9, listed(8, MAX_ARRAY_ITEMS))]), "in the middle of k"),
        (
            header([entry("k", 9, listed(8, 1, struct.pack("<Q", 2**63)))]),
            "k is said to be 9223372036854775808",
        ),
        (
            header([entry("k", 9, listed(9, 1, listed(4, 1)))]),
            "k is a list of values of type 9, which is not read",
        ),
        (
            header([entry("general.alignment", 4, struct.pack("<I", 24))]),
            "general.alignment is 24, no power of two",
        ),
        (header([entry("general.alignment", 8, text("x"))]), "general.alignment is 'x', no power of two"),
        (header(infos=[info("a", ())]), "tensor a has 0 dimensions, not 1 to 4"),
        (header(infos=[info("a", (1,) * 5)]), "tensor a has 5 dimensions, not 1 to 4"),
        (
            header(infos=[info("a", (4, 0))], data=GOOD),
            r"tensor a has shape \(0, 4\), whose rows are no blocks",
        ),
        (header(infos=[info("a", (48,), 8)], data=GOOD), "whose rows are no blocks of 32 weights of Q8_0"),
        (
            header(infos=[info("a", (32,), 16)], data=GOOD),
            "stores a as IQ2_XXS, which is not read; take a file with",
        ),
        (header(infos=[info("a", (32,), 4000)], data=GOOD), "stores a as type 4000, which is not read"),
        (header(infos=[info("a", (4,), offset=8)], data=GOOD), "tensor a begins at 8, no multiple of 32"),
        (header(infos=[info("a", (16,), offset=32)], data=GOOD), "tensor a would end at byte"),
        (
            header(infos=[info("a", (4,), offset=2**63)], data=GOOD),
            "tensor a would end at byte 9223372036854775",
        ),
        (header(infos=[info("a", (2**63, 2**63))], data=GOOD), "tensor a would end at byte"),
        (header(infos=ROW * 2, data=GOOD), "tensor a is there twice"),
        (header(infos=[*ROW, info("b", (4,))], data=GOOD), "tensors a and b lie over each other"),
    ],
)
def test_what_is_wrong_with_a_header_is_said_in_a_sentence(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        read(tmp_path, content)


def test_no_memory_is_taken_by_a_number_that_a_file_claims(tmp_path: Path) -> None:
    lies = [header([entry("k", 9, listed(item_type, MAX_ARRAY_ITEMS))]) for item_type in (0, 8, 12)] + [
        header(counts=(MAX_TENSORS, MAX_ENTRIES)),
        header([entry("k", 8, struct.pack("<Q", MAX_STRING_BYTES))]),
    ]
    tracemalloc.start()
    try:
        for lie in lies:
            with pytest.raises(InvalidRequest):
                read(tmp_path, lie)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_header_takes_no_more_than_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    items = MAX_ARRAY_ITEMS * 8
    arrays = [
        entry(f"k{index}", 9, listed(12, MAX_ARRAY_ITEMS)) for index in range(MAX_HEADER_BYTES // items + 1)
    ]
    with file.open("wb") as written:  # holes: nothing of it is on the disk
        written.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(arrays)))
        for start in arrays:
            written.write(start)
            written.seek(items, 1)
        written.truncate()
    with pytest.raises(InvalidRequest, match=f"its header takes more than {MAX_HEADER_BYTES} bytes"):
        read_file_header(file)
