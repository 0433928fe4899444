"""A decode worker whose steps take the time that it is told, asleep: rounds as on a machine of its own.

    python -m tests.bench.sleeping_target    # configured as a decode worker is, and by STEP, a JSON object

All but the arithmetic is real: bus, service, engine, scheduler, sampler. A machine that others compute on
shows so what a way to draft is worth where steps have the time that they should have.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from torch import Tensor

from services.decode import __main__ as decode
from services.decode.config import DecodeConfig
from shared.engine import Engine
from shared.engine.batch import Batch
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.memory.kv_pool import KvPool
from shared.process import service
from shared.process.service import run_service
from shared.worker import engine_thread, host
from tests.simulation.simulated_model import SimulatedModel
from tests.simulation.step_profile import StepProfile

STEP = "SLEEPING_STEP"


class SleepingModel(SimulatedModel):
    """Sleeps once a step: whoever wakes up beside others on a machine wakes up late."""

    def forward(self, batch: Batch) -> Tensor:
        logits = super().forward(batch)
        time.sleep(self._profile.us([(span.start, span.num_rows) for span in batch.spans]) / 1e6)
        return logits


def keep_priority() -> None:
    """A machine of its own is one on which nobody else has anything to do."""
    for module in (engine_thread, host, service):
        for name in ("give_way", "step_back"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: None)


def build(config: DecodeConfig, model_dir: Any, *_args: Any, **_options: Any) -> Engine:
    """An engine as `build_engine` makes it, with that model."""
    step_ms, row_ms = json.loads(os.environ[STEP])
    profile = StepProfile(1000 * (step_ms - row_ms), 1000 * row_ms, 0.0, 0.0)

    def make(_: EngineConfig, model: ModelConfig, pool: KvPool, _longest: int, _told: Any) -> SleepingModel:
        return SleepingModel(model, pool, profile)

    return Engine(config.engine_config(model_dir), make_model=make)


if __name__ == "__main__":
    keep_priority()
    vars(decode)["build_engine"] = build
    run_service("decode", DecodeConfig, decode.body)
