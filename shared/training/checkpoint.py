"""Save what a training run goes on from: the weights that learn, the optimizer's state, the progress; one
file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from shared.training.optimizer import Optimizer
from shared.training.tensor_file import write_tensors

FILE_NAME = "checkpoint.safetensors"


@dataclass(slots=True)
class TrainingProgress:
    """The state of a training run; `elapsed_s` is time spent training, over all resumes."""

    step: int = 0
    elapsed_s: float = 0.0
    tokens: int = 0


def save_checkpoint(folder: Path, model: nn.Module, optimizer: Optimizer, progress: TrainingProgress) -> None:
    """Write one file with what is trained; an interrupted write leaves the last checkpoint whole."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model/{name}": value.detach() for name, value in _trained(model).items()}
    tensors |= {f"optimizer/{name}": value for name, value in optimizer.state().items()}
    write_tensors(folder / FILE_NAME, tensors, {"progress": json.dumps(asdict(progress))})


def load_checkpoint(folder: Path, model: nn.Module, optimizer: Optimizer) -> TrainingProgress:
    """Continue from `folder`, or start afresh where it holds no checkpoint."""
    path = folder / FILE_NAME
    if not path.exists():
        return TrainingProgress()
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        progress = json.loads(file.metadata()["progress"])
    with torch.no_grad():
        for name, parameter in _trained(model).items():
            parameter.copy_(tensors[f"model/{name}"])
    optimizer.load(_under("optimizer/", tensors))
    known = {field.name for field in fields(TrainingProgress)}  # earlier versions wrote more of them
    return TrainingProgress(**{name: value for name, value in progress.items() if name in known})


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
