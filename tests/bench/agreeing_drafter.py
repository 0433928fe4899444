"""A speculator whose drafts are right as often as it is told, with steps as long as it is told.

    python -m tests.bench.agreeing_drafter    # configured as a speculator is, and by AGREEMENT, a JSON object

The service is the real one, and so is its engine but for the model: that knows how the target goes on, and
errs by a counter RNG over the text. It sleeps instead of computing, as if it had a machine of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.speculator.actor import SpeculatorActor
from services.speculator.config import SpeculatorConfig
from shared.bus import Delivery
from shared.engine import Engine
from shared.engine.batch import Batch
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.memory.kv_pool import KvPool
from shared.process.service import Service, run_service
from shared.text.model_source import resolve_model
from shared.worker.host import EngineHost
from tests.bench.sleeping_target import SleepingModel, keep_priority
from tests.simulation.simulated_model import _GOLDEN, mixed_int
from tests.simulation.step_profile import StepProfile

RUNNER_UPS = (0.6, 0.2, 0.1)
"""The shares of errors in which the right id is the first, second and third likeliest of the others."""
SETTINGS = "AGREEMENT"


@dataclass(frozen=True, slots=True)
class Agreement:
    """`texts`: token ids of whole answers with their prompts. `way_ms`: what a message takes on its way, one
    way, beside the bus."""

    texts: tuple[tuple[int, ...], ...]
    acceptance: float
    step_ms: float
    row_ms: float
    way_ms: float = 0.0
    seed: int = 1

    @classmethod
    def read(cls) -> Agreement:
        told = json.loads(Path(os.environ[SETTINGS]).read_text("utf-8"))
        return cls(**{**told, "texts": tuple(map(tuple, told["texts"]))})


class AgreeingModel(SleepingModel):
    """Knows what follows each beginning of its texts; anything else is followed by anything."""

    def __init__(self, config: ModelConfig, pool: KvPool, agreement: Agreement) -> None:
        profile = StepProfile(
            1000 * (agreement.step_ms - agreement.row_ms), 1000 * agreement.row_ms, 0.0, 0.0
        )
        super().__init__(config, pool, profile)
        self._agreement = agreement
        self._vocab_size = config.vocab_size
        self._next: dict[int, int] = {}
        for text in agreement.texts:
            name = int(_GOLDEN)
            for token_id, following in itertools.pairwise(text):
                name = mixed_int(name ^ mixed_int(token_id + int(_GOLDEN)))
                self._next[name] = following

    def _logits(self, batch: Batch) -> NDArray[np.float32]:
        wanted, first = list(batch.logit_rows), 0
        logits = np.full((len(wanted), self._vocab_size), -30.0, dtype=np.float32)
        at = 0
        for span in batch.spans:
            while at < len(wanted) and wanted[at] < first + span.num_rows:
                position = wanted[at] - first + span.start
                name = int(self._read(0, span, np.arange(position, position + 1))[0, 0, 0])
                self._favour(logits[at], name)
                at += 1
            first += span.num_rows
        return logits

    def _favour(self, logits: NDArray[np.float32], name: int) -> None:
        """Let the right id have its place among the likeliest."""
        agreement = self._agreement
        chances = (agreement.acceptance, *(np.array(RUNNER_UPS) * (1 - agreement.acceptance)))
        others = [mixed_int(name + number) % self._vocab_size for number in range(1, len(chances) + 1)]
        right = self._next.get(name)
        ids = [each for each in others if each != right][: len(chances)]
        if right is not None:
            drawn = mixed_int(name ^ mixed_int(agreement.seed)) / 2**64
            place = int(np.searchsorted(np.cumsum(chances), drawn))
            ids.insert(place, right)
        for token_id, chance in zip(ids, chances, strict=False):
            logits[token_id] = np.log(chance)


class DistantSpeculator(SpeculatorActor):
    """It is `way_s` away."""

    def __init__(self, way_s: float, *args: Any) -> None:
        super().__init__(*args)
        if way_s:
            loop, tell = asyncio.get_running_loop(), self._outbox.tell
            receive = super().receive

            def arrive(delivery: Delivery) -> None:
                loop.call_later(way_s, receive, delivery)

            async def tell_later(*args: Any) -> None:
                loop.call_later(way_s, lambda: loop.create_task(tell(*args)))

            self.receive = arrive  # type: ignore[method-assign]
            self._outbox.tell = tell_later  # type: ignore[method-assign,assignment]


async def body(service: Service[SpeculatorConfig]) -> None:
    config, agreement = service.config, Agreement.read()
    model = resolve_model(config.model, config.served_name)

    def make(
        _config: EngineConfig, model: ModelConfig, pool: KvPool, _longest: int, _told: Any
    ) -> AgreeingModel:
        return AgreeingModel(model, pool, agreement)

    host = await EngineHost.load(
        service, model, lambda: Engine(config.engine_config(model.path), make_model=make)
    )
    await host.serve(
        lambda: DistantSpeculator(
            agreement.way_ms / 1000, service, host.take_engine, host.mirror, host.adapters
        )
    )


if __name__ == "__main__":
    keep_priority()
    run_service("speculator", SpeculatorConfig, body)
