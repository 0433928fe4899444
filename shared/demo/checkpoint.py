"""Saving and loading: training checkpoints that resume, and models in the Hugging Face layout."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from shared.demo.llama import Llama, LlamaShape
from shared.demo.optimizer import Optimizer
from shared.demo.prompt import BOS, END, PAD, SPECIAL_TOKENS
from shared.engine import load_model_config
from shared.engine.loading.gguf.checkpoint import GgufCheckpoint
from shared.engine.loading.gguf.find_file import find_gguf
from shared.errors import InvalidRequest
from shared.training.whole_files import write_tensors


@dataclass(slots=True)
class TrainingProgress:
    """Where a training run stands; `elapsed_s` is time spent training, over all resumes."""

    step: int = 0
    stage: int = 0
    stage_started_s: float = 0.0
    elapsed_s: float = 0.0
    tokens: int = 0


def save_checkpoint(folder: Path, model: Llama, optimizer: Optimizer, progress: TrainingProgress) -> None:
    """Write one file with what is trained; an interrupted write leaves the last checkpoint whole."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model/{name}": value.detach() for name, value in _trained(model).items()}
    tensors |= {f"optimizer/{name}": value for name, value in optimizer.state().items()}
    write_tensors(folder / "checkpoint.safetensors", tensors, {"progress": json.dumps(asdict(progress))})


def load_checkpoint(folder: Path, model: Llama, optimizer: Optimizer) -> TrainingProgress:
    """Continue from `folder`, or start afresh where it holds no checkpoint."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return TrainingProgress()
    tensors = load_file(path)
    with torch.no_grad():
        for name, parameter in _trained(model).items():
            parameter.copy_(tensors[f"model/{name}"])
    optimizer.load(_under("optimizer/", tensors))
    header_bytes = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + header_bytes])
    return TrainingProgress(**json.loads(header["__metadata__"]["progress"]))


def _trained(model: Llama) -> dict[str, torch.nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def export_model(model: Llama, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (bf16) as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    special = {
        "bos_token_id": SPECIAL_TOKENS.index(BOS),
        "eos_token_id": SPECIAL_TOKENS.index(END),
        "pad_token_id": SPECIAL_TOKENS.index(PAD),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(shape),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **special,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"do_sample": False, **special})
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})


def load_model(path: Path) -> Llama:
    """A Llama with tied embeddings in fp32, from a folder in the Hugging Face layout or a GGUF file.

    Raises InvalidRequest for another architecture.
    """
    config = load_model_config(path)
    rope = config.layers[0].rope
    if config.architecture != "LlamaForCausalLM" or not config.tie_word_embeddings or rope is None:
        raise InvalidRequest(
            f"{path} is a {config.architecture}; what is trained here is a LlamaForCausalLM "
            "whose embedding is its head"
        )
    model = Llama(
        LlamaShape(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position_embeddings,
            rope_theta=rope.theta,
            rms_norm_eps=config.rms_norm_eps,
        )
    )
    gguf = find_gguf(path)
    if gguf is None:
        weights = load_file(path / "model.safetensors")
    else:
        checkpoint = GgufCheckpoint(gguf, config, torch.float32)
        with checkpoint.reading() as tensors:
            weights = {name: tensors.read(name) for name in checkpoint.tensors}
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
