"""Checkpoints for tests: the trained 260 k-parameter Llama where the shared data is, else one made here.

The data folder is found through PENSTOCK_TEST_DATA or beside the repository; a clone without it makes a tiny
checkpoint with random weights and a byte-level tokenizer, so every test still runs against transformers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.data import data_dir

TINY_TEXT = [
    "Once upon a time there was a little girl who lived near the forest.",
    "The dog ran after the ball and then it slept in the warm sun.",
    "Ünïcode, naïve café, 東京, здравствуй, नमस्ते, 🙂🚀",
]


def target_model(scratch: Path) -> Path:
    """A small Llama checkpoint directory; made under `scratch` when the shared one is absent."""
    data = data_dir()
    if data is not None:
        return data / "stories260k"
    return make_tiny_checkpoint(scratch / "tiny-llama")


def make_tiny_checkpoint(directory: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TINY_TEXT, trainer)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return directory


def windowed_of(model: Path, directory: Path, window_tokens: int) -> Path:
    """`model` with a window on every layer and a longer context, as a Mistral: its answers are others."""
    shutil.copytree(model, directory)
    config = json.loads((model / "config.json").read_text())
    config |= {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": window_tokens,
        "max_position_embeddings": 2048,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def mixed_of(model: Path, directory: Path, window_tokens: int) -> Path:
    """`model` with a window on its first layers and a longer context, as a SmolLM3: other answers."""
    shutil.copytree(model, directory)
    config = json.loads((model / "config.json").read_text())
    whole = config["num_hidden_layers"] // 3
    config |= {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "use_sliding_window": True,
        "sliding_window": window_tokens,
        "no_rope_layers": [0] * (config["num_hidden_layers"] - whole) + [1] * whole,
        "max_position_embeddings": 2048,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def draft_of(model: Path, directory: Path, layers: int = 2) -> Path:
    """A draft for `model`: its first layers and its embeddings, so some drafts are right and some wrong."""
    directory.mkdir(parents=True, exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    config["num_hidden_layers"] = layers
    (directory / "config.json").write_text(json.dumps(config))
    with safe_open(model / "model.safetensors", framework="pt") as weights:
        kept = {
            name: weights.get_tensor(name)
            for name in weights.keys()  # noqa: SIM118  # safe_open is no mapping: it has keys() alone
            if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
        }
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (model / name).exists():
            shutil.copy(model / name, directory / name)
    return directory
