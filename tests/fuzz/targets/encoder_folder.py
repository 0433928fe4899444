"""Cross-encoders in the Hugging Face layout: one file is changed, then a pair of texts is scored."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from shared.retrieval.encoders.cross_encoder import CrossEncoder
from tests.fuzz.mutation import mutated_json
from tests.fuzz.target import Target, in_folder
from tests.fuzz.targets.checkpoint import mutated_safetensors, placed, safetensors_bytes
from tests.fuzz.targets.tokenizer_folder import changed_spec, spec

HIDDEN, INNER, HEADS, POSITIONS, VOCAB = 32, 64, 2, 20, 300
CONFIG: dict[str, Any] = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "hidden_size": HIDDEN,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}
NAMES = ("config.json", "model.safetensors", "tokenizer.json")


@cache
def header() -> tuple[dict[str, Any], int]:
    """Return the header of a model with one layer."""
    layer = "bert.encoder.layer.0."
    maps = {
        **{f"{layer}attention.self.{name}": (HIDDEN, HIDDEN) for name in ("query", "key", "value")},
        f"{layer}attention.output.dense": (HIDDEN, HIDDEN),
        f"{layer}intermediate.dense": (INNER, HIDDEN),
        f"{layer}output.dense": (HIDDEN, INNER),
        "bert.pooler.dense": (HIDDEN, HIDDEN),
        "classifier": (1, HIDDEN),
    }
    norms = ("bert.embeddings.LayerNorm", f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm")
    tables = {"word": VOCAB, "position": POSITIONS, "token_type": 2}
    shapes: dict[str, tuple[int, ...]] = {
        f"bert.embeddings.{name}_embeddings.weight": (rows, HIDDEN) for name, rows in tables.items()
    }
    shapes |= {f"{name}.weight": shape for name, shape in maps.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in maps.items()}
    shapes |= {f"{name}.{part}": (HIDDEN,) for name in norms for part in ("weight", "bias")}
    return placed(shapes)


def make(rng: random.Random) -> bytes:
    """The name of a file, a line end, and what it holds."""
    name = rng.choice(NAMES)
    match name:
        case "config.json":
            config = {**CONFIG, "model_type": rng.choice(("bert", "bert", "roberta"))}
            data = mutated_json(config, rng)
        case "model.safetensors":
            data = mutated_safetensors(*header(), rng)
        case _:
            data = changed_spec(rng)
    return name.encode() + b"\n" + data


def run(folder: Path, data: bytes) -> None:
    said, _, content = data.partition(b"\n")
    name = said.decode(errors="replace")
    if name not in NAMES:
        return
    told, size = header()
    (folder / NAMES[0]).write_text(json.dumps(CONFIG))
    (folder / NAMES[1]).write_bytes(safetensors_bytes(json.dumps(told).encode(), bytes(size)))
    (folder / NAMES[2]).write_text(json.dumps(spec()))
    (folder / name).write_bytes(content)
    encoder = CrossEncoder.load(folder)
    encoder.score_texts("ab b", ["a", "b" * 50])


TARGET = Target("encoder_folder", make, in_folder(run), tries=150)
