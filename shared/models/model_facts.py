"""Tell what a model is, from its files alone: no weight is read, and no torch."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.engine.loading.config import load_model_config, read_json_object
from shared.engine.loading.gguf.find_file import SUFFIX, find_gguf
from shared.engine.loading.gguf.parts import read_header
from shared.engine.loading.weight_files import damaged_file, weight_files
from shared.errors import InvalidRequest, PenstockError
from shared.models.wanted_files import CARD
from shared.sampling.defaults import SamplingDefault
from shared.text.model_sampling import served_sampling
from shared.text.model_source import ModelSource
from shared.text.tokenizer import TextTokenizer

MAX_HEADER_BYTES = 64 << 20
"""The longest header of a safetensors file."""
MAX_CARD_BYTES = 1 << 16
"""The most of a model's card that is read."""
GGUF_FORMAT, CHECKPOINT_FORMAT = "gguf", "safetensors"
GGUF_LICENCE = "general.license"

_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_LICENCE = re.compile(r"^license:\s*['\"]?([\w.+ -]{1,64}?)['\"]?\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model. `parameters` is 0 where weights are packed and nobody says how many they are.
    `trouble` says why it cannot be served, "" where it can as far as its headers show."""

    model_format: str
    quantization: str
    architecture: str = ""
    parameters: int = 0
    layers: int = 0
    context_tokens: int = 0
    vocab_tokens: int = 0
    has_chat_template: bool = False
    tool_format: str = ""
    default_sampling: tuple[SamplingDefault, ...] = ()
    licence: str = ""
    trouble: str = ""


def read_model_facts(source: ModelSource) -> ModelFacts:
    """Return what the files say; what one of them refuses to say is the trouble of the model."""
    path = source.path
    names = [path.name] if path.is_file() else [each.name for each in path.iterdir()]
    known: dict[str, Any] = {"model_format": format_of(names), "quantization": "", "licence": _licence(path)}
    try:
        folder = path.parent if path.is_file() else path
        known["quantization"] = quantization_of(folder, names)
        known["parameters"] = _parameters(path)
        config = load_model_config(path)
        known |= {"architecture": config.architecture, "layers": len(config.layers)}
        known |= {"context_tokens": config.max_position_embeddings, "vocab_tokens": config.vocab_size}
        tokenizer = TextTokenizer.load(path)
        known["has_chat_template"] = tokenizer.has_chat_template
        known["tool_format"] = tokenizer.tool_format.name if tokenizer.has_chat_template else ""
        known["default_sampling"] = served_sampling(source, ())
    except PenstockError as error:
        known["trouble"] = error.message
    return ModelFacts(**known)


def format_of(names: Sequence[str]) -> str:
    return GGUF_FORMAT if any(name.endswith(SUFFIX) for name in names) else CHECKPOINT_FORMAT


def quantization_of(folder: Path, names: Sequence[str]) -> str:
    """Return how most of the weights are stored, as Q4_K or BF16, or the method that packed them; "?" where
    the headers do not say."""
    try:
        if format_of(names) == GGUF_FORMAT:
            (first, *_) = sorted(name for name in names if name.endswith(SUFFIX))
            sizes: Counter[str] = Counter()
            for tensor in read_header(folder / first).tensors.values():
                sizes[tensor.type.name] += tensor.num_bytes
            return sizes.most_common(1)[0][0] if sizes else "?"
        packed = (read_json_object(folder / "config.json") or {}).get("quantization_config")
        if isinstance(packed, Mapping):
            bits = packed.get("bits")
            method = str(packed.get("quant_method", "packed"))[:32]
            return f"{method}-{bits}" if isinstance(bits, int) else method
        weights: Counter[str] = Counter()
        for dtype, shape in _stored_tensors(folder):
            weights[dtype] += math.prod(shape)
        return weights.most_common(1)[0][0] if weights else "?"
    except PenstockError:
        return "?"  # whoever serves or shows the model says what is wrong with it


def _parameters(path: Path) -> int:
    gguf = find_gguf(path)
    if gguf is not None:
        return sum(math.prod(tensor.shape) for tensor in read_header(gguf).tensors.values())
    if "quantization_config" in (read_json_object(path / "config.json") or {}):
        return 0
    return sum(math.prod(shape) for _, shape in _stored_tensors(path))


def _stored_tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each tensor of a checkpoint. Raises NotFound, InvalidRequest."""
    for file in weight_files(folder):
        try:
            header = json.loads(_header(file))
            for name, about in header.items():
                if name != "__metadata__":
                    yield str(about["dtype"]), tuple(int(size) for size in about["shape"])
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise damaged_file(file, error) from error


def _header(file: Path) -> bytes:
    """Return what says where a file has which tensor. Raises OSError, ValueError."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        header = content.read(min(length, MAX_HEADER_BYTES))
    if len(header) != length:
        raise ValueError(f"its header is to have {length} bytes")
    return header


def _licence(path: Path) -> str:
    """Return what the card or the GGUF file says of the licence, "" for nothing."""
    card = (path.parent if path.is_file() else path) / CARD
    if card.is_file():
        with card.open("rb") as file:
            text = file.read(MAX_CARD_BYTES).decode(errors="replace")
        front = _FRONT_MATTER.match(text)
        found = _LICENCE.search(front[1]) if front else None
        if found:
            return found[1]
    try:
        gguf = find_gguf(path)
        said = read_header(gguf).metadata.get(GGUF_LICENCE) if gguf is not None else None
    except InvalidRequest:
        return ""  # the file itself is the trouble that is told
    return said[:64] if isinstance(said, str) else ""
