"""Muon for hidden matrices, AdamW for embeddings, norms and adapters, as one optimizer with one schedule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shared.training.muon import Muon

MATRIX_RATE = 6e-3
OTHER_RATE = 3e-3
HEAD_MATRIX_RATE = 3e-3
HEAD_OTHER_RATE = 1e-3
HEAD_WEIGHT_DECAY = 0.1
ADAPTER_RATE = 5e-4
ADAPTER_RATE_RATIO = 3.0
WEIGHT_DECAY = 0.03
WARMUP_STEPS = 100
DECAY_SHARE = 0.45
FINAL_RATE = 0.02


class Optimizer:
    """Several optimizers under one learning-rate factor, with state as plain named tensors."""

    def __init__(self, model: nn.Module, parts: Sequence[tuple[torch.optim.Optimizer, float]]) -> None:
        """`parts`: each with its base rate, together over all that is trained of `model`."""
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self._parts = tuple(parts)

    @classmethod
    def of_model(cls, model: nn.Module) -> Optimizer:
        """Muon for the hidden matrices, AdamW for the rest."""
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        chosen = set(matrices)
        others = [parameter for parameter in model.parameters() if parameter not in chosen]
        muon = Muon(matrices, MATRIX_RATE, WEIGHT_DECAY)
        adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        return cls(model, ((muon, MATRIX_RATE), (adam, OTHER_RATE)))

    @classmethod
    def of_head(cls, head: nn.Module) -> Optimizer:
        """Muon for the hidden matrices of a draft head that learn, AdamW for the rest of what learns."""
        learned = [parameter for parameter in head.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in learned if parameter.ndim == 2]
        muon = Muon(matrices, HEAD_MATRIX_RATE, HEAD_WEIGHT_DECAY)
        others = [parameter for parameter in learned if parameter.ndim != 2]
        adam = torch.optim.AdamW(others, lr=HEAD_OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        return cls(head, ((muon, HEAD_MATRIX_RATE), (adam, HEAD_OTHER_RATE)))

    @classmethod
    def of_adapter(cls, model: nn.Module) -> Optimizer:
        """AdamW, faster for the half of a low-rank product that starts at zero (LoRA+, arXiv:2402.12354)."""
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        rates = {"lora_a": ADAPTER_RATE, "lora_b": ADAPTER_RATE * ADAPTER_RATE_RATIO}
        parts = []
        for ending, rate in rates.items():
            half = [value for name, value in trained.items() if name.endswith(ending)]
            parts.append((torch.optim.AdamW(half, lr=rate, betas=(0.9, 0.98), weight_decay=0.0), rate))
        return cls(model, parts)

    def step(self, factor: float) -> None:
        """Apply the gradients at `factor` times the base rates, then clear them."""
        for part, rate in self._parts:
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Every state tensor as `<parameter>/<slot>`."""
        return {
            f"{self._names[parameter]}/{slot}": value.contiguous()
            for part, _ in self._parts
            for parameter, slots in part.state.items()
            for slot, value in slots.items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave."""
        for part, _ in self._parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    prefix = self._names[parameter] + "/"
                    part.state[parameter] = {
                        key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)
                    }


def rate_factor(step: int, progress: float, warmup_steps: int = WARMUP_STEPS) -> float:
    """Warm-up by steps, then constant, then linear decay over the last share of the time budget.

    `progress` is the share of the time budget that has passed, 0 to 1.
    """
    warmup = min(1.0, (step + 1) / warmup_steps)
    left = max(0.0, 1.0 - progress)
    return warmup * max(FINAL_RATE, min(1.0, left / DECAY_SHARE))
