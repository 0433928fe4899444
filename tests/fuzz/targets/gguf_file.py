"""GGUF files: a small Llama with metadata, tensors or bytes changed; read by worker and tokenizer."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import torch

from shared.engine.loading.config import load_model_config
from shared.engine.loading.gguf.ggml_types import READABLE_TYPES
from shared.engine.loading.weight_files import check_weight_files
from shared.engine.loading.weights import load_weights
from shared.text.tokenizer import TextTokenizer
from tests.fuzz.mutation import EDGES, HOSTILE_WORDS, mutated_bytes
from tests.fuzz.target import Target, in_folder
from tests.support.gguf_tokenizers import sentencepiece_metadata

HIDDEN, INNER, HEADS, LAYERS = 32, 64, 2, 1
ALIGNMENT = 32
FLOAT32, STRING, ARRAY, BOOL, UINT32, INT32 = 6, 8, 9, 7, 4, 5
ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt-oss",
    "glm4",
    "cohere2",
    "qwen3moe",
)


def make(rng: random.Random) -> bytes:
    metadata, tensors = _metadata(), _tensors()
    if rng.random() < 0.5:
        _rename(metadata, rng.choice(ARCHITECTURES))
    for _ in range(rng.randint(0, 3)):
        _change(metadata, tensors, rng)
    data = gguf_bytes(metadata, tensors)
    return mutated_bytes(data, rng) if rng.random() < 0.4 else data


def _metadata() -> dict[str, Any]:
    tokenizer = sentencepiece_metadata()
    return {
        "general.architecture": "llama",
        "general.alignment": ALIGNMENT,
        "llama.context_length": 64,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.vocab_size": len(tokenizer["tokenizer.ggml.tokens"]),
        **tokenizer,
    }


def _rename(metadata: dict[str, Any], architecture: str) -> None:
    metadata["general.architecture"] = architecture
    for key in [key for key in metadata if key.startswith("llama.")]:
        metadata[key.replace("llama", architecture, 1)] = metadata.pop(key)
    metadata[f"{architecture}.attention.sliding_window"] = 16
    metadata[f"{architecture}.expert_count"] = 0


def _tensors() -> dict[str, tuple[tuple[int, ...], int]]:
    """Name → (shape as the file has it, type)."""
    vocab = len(sentencepiece_metadata()["tokenizer.ggml.tokens"])
    layer = {
        "attn_norm.weight": ((HIDDEN,), 0),
        "attn_q.weight": ((HIDDEN, HIDDEN), 8),
        "attn_k.weight": ((HIDDEN, HIDDEN), 2),
        "attn_v.weight": ((HIDDEN, HIDDEN), 30),
        "attn_output.weight": ((HIDDEN, HIDDEN), 1),
        "ffn_norm.weight": ((HIDDEN,), 0),
        "ffn_gate.weight": ((HIDDEN, INNER), 0),
        "ffn_up.weight": ((HIDDEN, INNER), 6),
        "ffn_down.weight": ((INNER, HIDDEN), 39),
    }
    blocks = {f"blk.{number}.{name}": each for number in range(LAYERS) for name, each in layer.items()}
    return {"token_embd.weight": ((HIDDEN, vocab), 8), "output_norm.weight": ((HIDDEN,), 0), **blocks}


def _change(
    metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int]], rng: random.Random
) -> None:
    key, name = rng.choice(sorted(metadata)), rng.choice(sorted(tensors))
    hostile: list[Any] = [
        *EDGES[:14],
        -1,
        0.0,
        1e30,
        float("nan"),
        True,
        *HOSTILE_WORDS,
        [],
        [1],
        ["a"],
        [0.5] * 4,
    ]
    match rng.randrange(6):
        case 0:
            metadata[key] = rng.choice(hostile)
        case 1:
            del metadata[key]
        case 2:
            shape, _ = tensors[name]
            tensors[name] = shape, rng.choice((*READABLE_TYPES, 9, 24, 99))
        case 3:
            shape, kind = tensors[name]
            tensors[name] = tuple(rng.choice((each, 0, 1, 256, 2**31, 2**63)) for each in shape), kind
        case 4:
            tensors[rng.choice((f"{name}.bias", "output.weight", "rope_freqs.weight", "a"))] = tensors.pop(
                name
            )
        case _:
            metadata[key], items = (
                list(metadata[key]) if isinstance(metadata[key], list) else [metadata[key]],
                EDGES,
            )
            if metadata[key]:
                metadata[key][rng.randrange(len(metadata[key]))] = rng.choice(
                    (*items[:12], "", "▁a", "x" * 2000)
                )


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int]]) -> bytes:
    """Return a file with these entries, whose tensors are of ones and zeros."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [_string(key) + _typed(value) for key, value in metadata.items()]
    data = bytearray()
    for name, (shape, kind) in tensors.items():
        place = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        head.append(_string(name) + place)
        size = _num_bytes(shape, kind)
        data += bytes(1 for _ in range(size)) + bytes(-size % ALIGNMENT)
    header = b"".join(head)
    return header + bytes(-len(header) % ALIGNMENT) + bytes(data)


def _num_bytes(shape: tuple[int, ...], kind: int) -> int:
    if kind not in READABLE_TYPES:
        return 0
    weights = 1
    for each in shape:
        weights *= each
    ggml = READABLE_TYPES[kind]
    return min(weights // ggml.block_weights * ggml.block_bytes, 1 << 17)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _typed(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", UINT32, value) if 0 <= value < 2**32 else struct.pack("<Iq", 11, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + _string(value)
        case _:
            return struct.pack("<I", ARRAY) + _array(value)


def _array(items: list[Any]) -> bytes:
    if items and isinstance(items[0], str):
        return struct.pack("<IQ", STRING, len(items)) + b"".join(_string(str(each)) for each in items)
    if items and isinstance(items[0], float):
        numbers = [float(each) if isinstance(each, int | float) else 0.0 for each in items]
        return struct.pack(f"<IQ{len(items)}f", FLOAT32, len(items), *numbers)
    whole = [each & 0x7FFFFFFF if isinstance(each, int) else 0 for each in items]
    return struct.pack(f"<IQ{len(items)}i", INT32, len(items), *whole)


def run(folder: Path, data: bytes) -> None:
    path = folder / "model.gguf"
    path.write_bytes(data)
    check_weight_files(path)
    tokenizer = TextTokenizer.load(path)
    tokenizer.encode_text("a b abc \U0001f600")
    config = load_model_config(path, "float32")
    load_weights(path, config, torch.device("cpu"))


TARGET = Target("gguf_file", make, in_folder(run), tries=150)
