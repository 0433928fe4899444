"""Record what a request takes of a worker: its time there, for its timeline and the metrics, and the time of
the engine and KV, for what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from shared.engine import Engine, StepResult
from shared.messages import Mark
from shared.telemetry import metrics
from shared.telemetry.labelled import labelled

KIB = 1024
TOLD_EVERY_TOKENS = 64
"""A job says what it has taken with its last tokens, and after so many: one that is cancelled has said the
rest of it to nobody."""


def hop_mark(hop: str, phase: str, seconds: float) -> Mark:
    """Counts it; a clock that went backwards counts as nothing."""
    duration_us = max(0, round(seconds * 1e6))
    labelled(metrics.HOP_SECONDS, hop, phase).observe(duration_us / 1e6)
    return Mark(f"{hop}.{phase}", duration_us)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The part of a step that one of its rows is: all rows of a step cost alike. `unit` is what that is the
    time of: a core, or a device."""

    row_us: float
    unit: str

    @classmethod
    def of(cls, result: StepResult, engine: Engine) -> StepCost:
        on_cpu = engine.config.device == "cpu"
        lanes = engine.threads_now if on_cpu else engine.config.tensor_parallel
        return cls(lanes * result.step_us / max(1, result.batch_tokens), "core" if on_cpu else "device")


@dataclass(slots=True)
class ComputeUse:
    """The use that has not been told yet. `held_since_s`: until then its KV has been counted, None: there has
    been none."""

    engine_us: float = 0.0
    kv_byte_s: float = 0.0
    held_since_s: float | None = None
    untold_tokens: int = 0

    def hold(self, num_bytes: int, now_s: float, since_s: float) -> None:
        """It has held so many bytes of KV since it was asked last, or since `since_s`."""
        began_s = since_s if self.held_since_s is None else self.held_since_s
        self.kv_byte_s += num_bytes * max(0.0, now_s - began_s)
        self.held_since_s = now_s

    def take_marks(self, role: str, unit: str) -> tuple[Mark, ...]:
        """Return what has not been told, which is told then; parts below a unit stay for the next time."""
        spent_us, kib_s = int(self.engine_us), int(self.kv_byte_s / KIB)
        self.engine_us -= spent_us
        self.kv_byte_s -= kib_s * KIB
        self.untold_tokens = 0
        return Mark(f"count:{role}_{unit}_us", spent_us), Mark("count:kv_kib_s", kib_s)
