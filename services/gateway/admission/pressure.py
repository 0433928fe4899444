"""Measure how hard first-token deadlines are to meet, and degrade each model by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from services.gateway.admission.admission import queued_s
from services.gateway.admission.admission_queue import AdmissionQueue
from services.gateway.admission.model_levels import LevelStep, ModelLevels
from services.gateway.admission.ticket import LOWEST_CLASS
from services.gateway.admission.usual_budget import UsualBudget
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import Candidate, serving
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.fairness.share import TenantShare
from shared.telemetry import metrics

log = structlog.get_logger()

WATCH_S = 0.1
"""The time between two looks at the pressure."""
REST_WATCH_S = 0.5
"""The same while there is none, and nothing is left out."""
RESTS_AFTER = 10
"""The watch rests after so many looks without pressure and without a request, until one comes."""


class Pressure:
    """Predicted waits as shares of the budgets that clients give.

    `instances(role)`: those of the fleet, with what was sent to them since they told of themselves.
    """

    def __init__(
        self,
        queue: AdmissionQueue,
        instances: Callable[[str], Sequence[Candidate]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._queue = queue
        self._instances = instances
        self._budgets = UsualBudget(clock)
        self._asked = asyncio.Event()

    def record_budget(self, tenant: str, first_token_s: float) -> None:
        """A request of `tenant` was taken, with so much time for its first token."""
        self._budgets.record(tenant, first_token_s)
        self._asked.set()

    async def until_asked(self) -> None:
        """Return when a request has come since this was last waited for."""
        await self._asked.wait()
        self._asked.clear()

    def wait_s(self, model: ModelIdentity, share: TenantShare | None = None) -> float:
        """Return how long a request for `model` that goes behind all others would wait before it is
        computed; of a `share`, behind all of its tenant's."""
        queue_s = self._queue.expected_wait_s(model, LOWEST_CLASS, share)
        return queue_s + min(
            map(queued_s, serving(self._instances("prefill"), "prefill", model)), default=0.0
        )

    def of(self, model: ModelIdentity, share: TenantShare | None = None) -> float:
        """Return that wait as a part of the usual budget."""
        usual_s = self.usual_budget_s
        return self.wait_s(model, share) / usual_s if usual_s else 0.0

    def by_model(self) -> dict[ModelIdentity, float]:
        """Return the pressure of each model that is served."""
        models = {ModelIdentity.of(view.heartbeat) for view in self._instances("decode")}
        return {model: self.of(model) for model in models}

    def highest(self) -> float:
        """Return the highest pressure of all models that are served."""
        return max(self.by_model().values(), default=0.0)

    @property
    def usual_budget_s(self) -> float:
        """The usual time for a first token, of the requests that were taken lately; 0 without any."""
        return self._budgets.usual_s()


async def watch_pressure(pressure: Pressure, levels: ModelLevels, changed: Callable[[], None]) -> None:
    """Let the levels follow the pressures, for ever; `changed` is called after every step."""
    calm_looks = 0
    while True:
        now = pressure.by_model()
        for step in levels.observe(now):
            _note_step(step)
            metrics.DEGRADATION_LEVEL.set(levels.highest)
            changed()
        if any(now.values()) or levels.highest:
            calm_looks = 0
            await asyncio.sleep(WATCH_S)
        elif calm_looks < RESTS_AFTER:
            calm_looks += 1
            await asyncio.sleep(REST_WATCH_S)
        else:
            calm_looks = 0
            await pressure.until_asked()


def _note_step(step: LevelStep) -> None:
    metrics.DEGRADATION_STEPS.labels(
        step=max(step.now, step.was).word, direction="entered" if step.rises else "left"
    ).inc()
    log.warning(
        "degradation",
        model=step.model.name,
        now=step.now.word,
        was=step.was.word,
        pressure=round(step.pressure, 2),
    )
