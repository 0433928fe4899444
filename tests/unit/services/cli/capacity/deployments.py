"""A profile for tests, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.cli.bench.plan.lengths import TokenLengths
from services.cli.capacity.profile import (
    DecodeProfile,
    DeploymentProfile,
    FrontProfile,
    HostSize,
    PrefillProfile,
    QuantizedSpeed,
    RestartProfile,
)
from services.cli.capacity.step_curve import StepCurve
from services.cli.capacity.workload import Workload

CURVE = StepCurve(((1, 12.0), (8, 20.0), (16, 30.0)))
PROFILE = DeploymentProfile(
    "test",
    HostSize(2),
    FrontProfile(3.0, 0.1, 2.0),
    PrefillProfile(1500.0, 4.0),
    DecodeProfile(CURVE, slots=16, kv_blocks=4096, transfer_ms=3.0),
    RestartProfile(12.0),
    QuantizedSpeed(2500.0, StepCurve(((1, 7.0), (16, 22.0)))),
)


def document() -> dict[str, Any]:
    """The tables of a file of PROFILE."""
    return {
        "name": "test",
        "host": {"cores": 2},
        "gateway": {"cpu_ms": 3.0, "token_cpu_ms": 0.1, "overhead_ms": 2.0},
        "prefill": {"tokens_per_s": 1500, "overhead_ms": 4},
        "decode": {
            "step_ms": [[1, 12.0], [8, 20.0], [16, 30]],
            "slots": 16,
            "kv_blocks": 4096,
            "transfer_ms": 3,
        },
        "restart": {"ready_s": 12},
        "int8": {"tokens_per_s": 2500, "step_ms": [[1, 7.0], [16, 22.0]]},
    }


def profile_file(folder: Path, text: str = "") -> Path:
    path = folder / "profile.json"
    path.write_text(text or json.dumps(document()))
    return path


def load(rate: float, prompt: int = 256, answer: int = 64, variation: float = 1.0) -> Workload:
    return Workload.of_lengths(rate, variation, TokenLengths(prompt, prompt), TokenLengths(answer, answer))
