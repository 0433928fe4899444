"""python unpack_gguf.py FILE.gguf FOLDER: its weights in bf16 as safetensors, for servers that read no GGUF.

Runs where transformers, gguf and accelerate are, as in vLLM's environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TIED_HEAD = "lm_head.weight"


def unpack(file: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.bfloat16
    if hasattr(model.config, "quantization_config"):  # transformers takes an unpacked file for a packed one
        del model.config.quantization_config
    tied = model.config.tie_word_embeddings
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    folder.mkdir(parents=True)
    save_file(
        {name: weight for name, weight in weights.items() if not (tied and name == TIED_HEAD)},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    model.config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
