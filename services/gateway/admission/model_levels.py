"""Keep the level of degradation of each model: what one cannot do in time, others need not do without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.gateway.admission.degradation import Degradation
from services.gateway.fleet.model_identity import ModelIdentity
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.degradation import DegradationLevel
from shared.messages import ModelLevel

MAX_REPORTED_MODELS = 16
"""The most models whose levels a heartbeat tells: those with the highest."""


@dataclass(frozen=True, slots=True)
class LevelStep:
    """A model's level has changed, under this pressure."""

    model: ModelIdentity
    was: DegradationLevel
    now: DegradationLevel
    pressure: float

    @property
    def rises(self) -> bool:
        return self.now > self.was


class ModelLevels:
    """Adapters over a model share its workers, and so its level."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._ladders: dict[ModelIdentity, Degradation] = {}

    def of(self, model: ModelIdentity) -> DegradationLevel:
        ladder = self._ladders.get(model.base)
        return DegradationLevel.NONE if ladder is None else ladder.level

    @property
    def highest(self) -> DegradationLevel:
        """The level for what is done for no model in particular."""
        return max((ladder.level for ladder in self._ladders.values()), default=DegradationLevel.NONE)

    def ladder(self, model: ModelIdentity) -> Degradation:
        """Return what decides the model's level."""
        return self._ladders.setdefault(model.base, Degradation(self._clock))

    def observe(self, pressures: Mapping[ModelIdentity, float]) -> list[LevelStep]:
        """Return what changes by the pressures of all models that are served. One that is served no more is
        under none, and is forgotten when nothing of it is left out."""
        steps: list[LevelStep] = []
        for model in dict.fromkeys((*pressures, *self._ladders)):
            ladder, pressure = self.ladder(model), pressures.get(model, 0.0)
            was = ladder.level
            if ladder.observe(pressure):
                steps.append(LevelStep(model, was, ladder.level, pressure))
            if not ladder.level and model not in pressures:
                del self._ladders[model]
        return steps

    def report(self) -> tuple[ModelLevel, ...]:
        """Return the models of which something is left out."""
        told = [
            ModelLevel(model.name, model.weights, int(ladder.level))
            for model, ladder in self._ladders.items()
            if ladder.level
        ]
        return tuple(sorted(told, key=lambda each: -each.level)[:MAX_REPORTED_MODELS])
