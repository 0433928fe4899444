"""Thousands of damaged GGUF files: each is read, or refused with a sentence; nothing else ever happens."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.config import load_model_config
from shared.engine.loading.gguf.header import read_file_header
from shared.engine.loading.gguf.parts import read_header
from shared.engine.loading.weight_files import check_weight_files
from shared.engine.loading.weights import WeightReader
from shared.errors import InvalidRequest, NotFound
from shared.text.model_source import resolve_model
from shared.text.tokenizer import TextTokenizer
from tests.support.engine import save_random_model
from tests.support.engine_families import LLAMA3_ROPE
from tests.support.gguf_files import GgufModel
from tests.support.gguf_tokenizers import sentencepiece_metadata

FILES_PER_WAY = 250
MODELS_PER_WAY = 50
"""The models of several parts, one of which is damaged."""
TYPES = {"blk.0.attn_q.weight": "IQ4_NL", "blk.1.attn_q.weight": "Q4_0", "blk.0.ffn_up.weight": "MXFP4"}
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)

Damage = Callable[[bytearray, int, random.Random], bytearray]


def cut(content: bytearray, header_bytes: int, chance: random.Random) -> bytearray:
    return content[: chance.randrange(chance.choice((header_bytes, len(content))))]


def flip(content: bytearray, header_bytes: int, chance: random.Random) -> bytearray:
    for _ in range(chance.randint(1, 3)):
        content[chance.randrange(4, header_bytes)] ^= 1 << chance.randrange(8)
    return content


def lie(content: bytearray, header_bytes: int, chance: random.Random) -> bytearray:
    """A number somewhere is another one."""
    layout, most = chance.choice((("<Q", 2**64), ("<I", 2**32)))
    at = chance.randrange(4, header_bytes - 8)
    struct.pack_into(layout, content, at, chance.choice(EXTREMES) % most)
    return content


def lie_in_a_value(content: bytearray, header_bytes: int, chance: random.Random) -> bytearray:
    """A number of the metadata is another one: the file is whole, and says something else."""
    spans = [span for span in read_spans(content) if span[1] - span[0] < 100]
    _, end = chance.choice(spans)
    struct.pack_into("<I", content, end - 4, chance.choice(EXTREMES) % 2**32)
    return content


def move(content: bytearray, header_bytes: int, chance: random.Random) -> bytearray:
    """A piece of the header lies over another one."""
    length = chance.randint(1, 64)
    source, target = (chance.randrange(4, header_bytes - length) for _ in range(2))
    content[target : target + length] = content[source : source + length]
    return content


def save_wide(folder: Path) -> Path:
    """A model whose rows are whole blocks of each type; it has rope's divisors as a tensor, too."""
    return save_random_model(folder, rope_parameters=LLAMA3_ROPE, head_dim=20, hidden_size=96)


_SPANS: list[tuple[int, int]] = []


def read_spans(content: bytearray) -> list[tuple[int, int]]:
    return _SPANS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    model = GgufModel.of(save_wide(folder / "hf"))
    model.write(folder / "model.gguf", tokenizer=sentencepiece_metadata(), others=TYPES)
    _SPANS[:] = read_header(folder / "model.gguf").spans.values()
    return (folder / "model.gguf").read_bytes()


def use(file: Path) -> None:
    """All that a service, a launcher and an engine do with a model."""
    check_weight_files(file)
    source = resolve_model(str(file))
    source.tokenizer_digest()
    checkpoint_digest(source.path)
    TextTokenizer.load(source.path).encode_text("abc <tool> é")
    config = load_model_config(file)
    reader = WeightReader(file, config, torch.device("cpu"))
    for _ in reader.layers():
        pass
    reader.head(reader.embedding())
    reader.final_norm()


@pytest.mark.thorough(but="cut | move")
@pytest.mark.parametrize("way", [cut, flip, lie, lie_in_a_value, move])
def test_a_damaged_file_is_read_or_refused_with_a_sentence(way: Damage, whole: bytes, tmp_path: Path) -> None:
    file, chance = tmp_path / "model.gguf", random.Random(way.__name__)
    sentences: list[str] = []
    file.write_bytes(whole)
    header_bytes = len(read_header(file).data)
    for _ in range(FILES_PER_WAY):
        file.write_bytes(way(bytearray(whole), header_bytes, chance))
        try:
            use(file)
        except (InvalidRequest, NotFound) as error:
            sentences.append(error.message)
    assert len(sentences) > FILES_PER_WAY // 4
    assert all(len(sentence) > 20 for sentence in sentences)


@pytest.mark.parametrize("way", [cut, flip, lie, move])
def test_a_model_with_a_damaged_part_is_read_or_refused_with_a_sentence(way: Damage, tmp_path: Path) -> None:
    model = GgufModel.of(save_wide(tmp_path / "hf"))
    (tmp_path / "parts").mkdir()
    model.write(tmp_path / "parts" / "m.gguf", tokenizer=sentencepiece_metadata(), part_tensors=10)
    parts, chance = sorted((tmp_path / "parts").iterdir()), random.Random(way.__name__)
    assert len(parts) >= 3
    sentences: list[str] = []
    for _ in range(MODELS_PER_WAY):
        part = chance.choice(parts)
        whole = part.read_bytes()
        part.write_bytes(way(bytearray(whole), len(read_file_header(part).data), chance))
        try:
            use(parts[0])
        except (InvalidRequest, NotFound) as error:
            sentences.append(error.message)
        part.write_bytes(whole)
    use(parts[0])
    assert len(sentences) > MODELS_PER_WAY // 4
    assert all(len(sentence) > 20 for sentence in sentences)
