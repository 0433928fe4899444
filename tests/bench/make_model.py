"""Checkpoints with random weights in the shapes that the engine's benchmark compares.

    python -m tests.bench.make_model --shape q05b --out DIR [--books DIR] [--seed N]

The directory is a plain Hugging Face one, so that every engine reads it unmodified: config.json, bf16
safetensors drawn from the seed, and a byte-level BPE tokenizer trained on books.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.data import data_dir

VOCAB_SIZE = 32_000
MAX_POSITIONS = 16_384
WEIGHT_STD = 0.02
BOS, EOS = "<|bos|>", "<|endoftext|>"
TRAINING_CHARACTERS = 12_000_000  # enough for 32,000 merges, and trained in seconds
PIECE_CHARACTERS = 20_000
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n\n{% endfor %}"
"""The template of a chat, without which some servers refuse one."""

_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "initializer_range": WEIGHT_STD,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    # The shape of Qwen2.5-0.5B with a smaller vocabulary: 387 M parameters.
    "q05b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": False,
        **_COMMON,
    },
    # The shape of Llama-3.2-1B with a smaller vocabulary: 1,039 M parameters.
    "l1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "attention_bias": False,
        "mlp_bias": False,
        **_COMMON,
    },
    # A small Llama: 100 M parameters.
    "l100m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "attention_bias": False,
        "mlp_bias": False,
        **_COMMON,
    },
}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor; the head is the embedding."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = hidden // config["num_attention_heads"]
    key = config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows, columns in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", key, hidden),
            ("self_attn.v_proj", key, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if config["model_type"] == "qwen2" and name.endswith(("q_proj", "k_proj", "v_proj")):
                shapes[f"{prefix}{name}.bias"] = (rows,)
    shapes["model.norm.weight"] = (hidden,)
    return shapes


def random_tensors(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """bf16 weights, equal for equal seeds: normal with WEIGHT_STD, norms one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if "norm" in name
        else torch.empty(shape).normal_(0.0, WEIGHT_STD, generator=generator).bfloat16()
        for name, shape in tensor_shapes(config).items()
    }


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """GPT-2's kind of byte-level BPE, which every peer reads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    missing = VOCAB_SIZE - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<|unused{index}|>" for index in range(missing)])
    return tokenizer


def book_pieces(folder: Path) -> Iterator[str]:
    """The first TRAINING_CHARACTERS of the folder's books, in pieces that train in parallel."""
    left = TRAINING_CHARACTERS
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")[:left]
        left -= len(text)
        yield from (text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS))


def make_model(config: dict[str, Any], folder: Path, texts: Iterable[str], seed: int = 0) -> None:
    """Write the checkpoint directory."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(random_tensors(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    ends = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    train_tokenizer(texts).save(str(folder / "tokenizer.json"))
    for name, value in (
        ("config.json", config),
        ("generation_config.json", {"do_sample": False, **ends}),
        (
            "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": BOS,
                "eos_token": EOS,
                "add_bos_token": False,
                "chat_template": CHAT_TEMPLATE,
                "clean_up_tokenization_spaces": False,
                "model_max_length": config["max_position_embeddings"],
            },
        ),
    ):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--out", type=Path, required=True, help="the directory to write")
    parser.add_argument("--books", type=Path, help="folder of *.md texts; the shared test data by default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = data_dir()
    books = options.books or (data / "books" if data else None)
    if books is None or not any(books.glob("*.md")):
        parser.error("no *.md books to train the tokenizer on; name their folder with --books")
    make_model(SHAPES[options.shape], options.out, book_pieces(books), options.seed)
    size_mb = (options.out / "model.safetensors").stat().st_size / 1e6
    print(f"{options.shape}: {size_mb:.0f} MB of weights in {options.out}")


if __name__ == "__main__":
    main()
