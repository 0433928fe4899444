"""Drives the prefill worker's engine: admits prompts, and warms a prefix when there are none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from services.prefill.job import PrefillJob
from services.prefill.step_news import StepNews
from services.prefill.warming import Warming
from shared.engine import AdmitResult, Engine, LayerCallback, StepResult
from shared.engine.scheduling.order import LOWEST_PRIORITY
from shared.errors import PenstockError
from shared.telemetry import metrics
from shared.worker.driver import EngineDriver
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.wire import SequenceSpec

log = structlog.get_logger()

PROMPTS_AT_ONCE = 8
"""So many prompts of a class and those above may be computed side by side; more only where they fit into one
chunk. Those of lower classes do not count, so that they never keep a more urgent prompt waiting."""

NO_STEP = StepResult((), (), (), (), 0, 0, 0, (), 0, 0)
"""There was nothing to compute."""

Joined = Callable[[Sequence[PrefillJob], Sequence[AdmitResult | PenstockError]], None]
"""What became of jobs that were to join the engine."""


@dataclass(frozen=True, slots=True)
class _Joining:
    jobs: Sequence[PrefillJob]
    callbacks: Sequence[LayerCallback]
    joined: Joined


class PrefillDriver(EngineDriver[StepResult]):
    def __init__(self, load: Callable[[], Engine], mirror: PrefixMirror, wake: Callable[[], None]) -> None:
        super().__init__("prefill-engine", load, mirror, wake)
        self.warming = Warming()
        self._joining: _Joining | None = None

    def room_tokens(self, computing_tokens: int, computing_prompts: int) -> int:
        """How much of the next chunk is not taken by prompts that are being computed.

        There is room for one more while those are few: a short prompt shares chunks with the long ones before
        it, and for that the engine must have it.
        """
        room = self.engine.config.max_batch_tokens - computing_tokens
        return max(room, 1) if computing_prompts < PROMPTS_AT_ONCE else room

    async def admit(
        self, jobs: Sequence[PrefillJob], callbacks: Sequence[LayerCallback]
    ) -> list[AdmitResult | PenstockError]:
        """Take them in between two steps, in order; each is admitted or refused by itself."""
        return await self.between_steps(lambda engine: self._admit_all(engine, jobs, callbacks))

    def join(self, jobs: Sequence[PrefillJob], callbacks: Sequence[LayerCallback], joined: Joined) -> None:
        """Take them in as the next step begins: their way to the engine's thread is that of the step.

        `joined` comes on the loop, before all that is told of their layers. Where all are refused and there
        is nothing else to do, the step's result is NO_STEP.
        """
        self._joining = _Joining(jobs, callbacks, joined)

    @property
    def has_work(self) -> bool:
        return self._joining is not None or super().has_work

    def begin_next_step(self, news: StepNews) -> None:
        joining, self._joining = self._joining, None

        def step(engine: Engine) -> StepResult:
            news.begin_step()
            if joining is not None:
                admitted = self._admit_all(engine, joining.jobs, joining.callbacks)
                news.tell(lambda: joining.joined(joining.jobs, admitted))
            return engine.step() if engine.has_work else NO_STEP

        self.begin_step(step)

    def _admit_all(
        self, engine: Engine, jobs: Sequence[PrefillJob], callbacks: Sequence[LayerCallback]
    ) -> list[AdmitResult | PenstockError]:
        return [
            _admit(
                engine,
                job.key,
                dataclasses.replace(job.spec, params=job.params),
                self._moving(on_layer),
                adapter=job.adapter,
                priority=job.priority,
                deadline_us=round(job.first_token.at_s * 1e6),
            )
            for job, on_layer in zip(jobs, callbacks, strict=True)
        ]

    def take_result(self) -> StepResult | None:
        result = super().take_result()
        if result is not None and any(output.key == self.warming.key for output in result.outputs):
            self._end_warming()
        return result

    def _moving(self, on_layer: LayerCallback | None) -> LayerCallback:
        """Every layer is progress: a chunk of a large model may take longer than anything may stand still."""

        def call(layer: int, start_token: int, end_token: int) -> None:
            self.activity.move()
            if on_layer is not None:
                on_layer(layer, start_token, end_token)

        return call

    # ---- warming ------------------------------------------------------------------------------------

    async def warm(self) -> None:
        """Begin with the prefix that was offered, if there is one."""
        spec, key = self.warming.spec, self.warming.key
        if spec is None or self.warming.running:
            return
        admitted = await self.between_steps(
            lambda engine: _admit(engine, key, spec, self._moving(None), priority=LOWEST_PRIORITY)
        )
        if isinstance(admitted, PenstockError):
            metrics.DROPPED_MESSAGES.labels(reason="warm_refused").inc()
            log.debug("warm_refused", error=admitted.message)
            self.warming.done()
        else:
            self.warming.running = True

    def yield_to(self, *, busy: bool) -> None:
        """Real work ends warming; the blocks that are full stay in the prefix cache."""
        if busy and self.warming.spec is not None:
            self._end_warming()

    def _end_warming(self) -> None:
        self.release_later(self.warming.key)
        self.warming.done()


def _admit(
    engine: Engine,
    key: str,
    spec: SequenceSpec,
    on_layer: LayerCallback,
    *,
    adapter: str = "",
    priority: int,
    deadline_us: int | None = None,
) -> AdmitResult | PenstockError:
    try:
        return engine.admit(
            key,
            spec.token_ids,
            spec.prompt_len,
            spec.params,
            spec.block_hashes,
            stop_after=1,
            on_layer=on_layer,
            adapter=adapter,
            priority=priority,
            deadline_us=deadline_us,
        )
    except PenstockError as error:
        return error
