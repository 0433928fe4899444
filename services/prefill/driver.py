"""Drives the prefill worker's engine: prompts join it between two steps, or as the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.prefill.job import PrefillJob
from services.prefill.step_events import StepEvents
from shared.engine import NO_STEP, AdmitResult, Engine, LayerCallback, StepResult
from shared.errors import PenstockError
from shared.worker.driver import EngineDriver
from shared.worker.prefix_mirror import PrefixMirror

PROMPTS_AT_ONCE = 8
"""The most prompts of a class and those above that are computed side by side; more only where they fit into
one chunk. Those of lower classes do not count, so that they never keep a more urgent prompt waiting."""

Joined = Callable[[Sequence[PrefillJob], Sequence[AdmitResult | PenstockError]], None]
"""A callback with what became of jobs that were to join the engine."""


@dataclass(frozen=True, slots=True)
class _Joining:
    jobs: Sequence[PrefillJob]
    callbacks: Sequence[LayerCallback]
    joined: Joined


class PrefillDriver(EngineDriver[StepResult]):
    def __init__(self, load: Callable[[], Engine], mirror: PrefixMirror, wake: Callable[[], None]) -> None:
        super().__init__("prefill-engine", load, mirror, wake)
        self._joining: _Joining | None = None

    def room_tokens(self, computing_tokens: int, computing_prompts: int) -> int:
        """The tokens of the next chunk that are not taken by prompts that are being computed.

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
        return self._joining is not None or self.computes_part or super().has_work

    async def step_on(self, events: StepEvents, *, computing: bool) -> None:
        """Begin the next step, if there is work. The releases that wait go with it where a prompt is
        `computing` or joins; else they go first, since without them there may be no work."""
        if not (computing or self.computes_part or self._joining is not None):
            await self.flush_releases()
        if self.has_work:
            self.begin_next_step(events)

    def begin_next_step(self, events: StepEvents) -> None:
        joining, self._joining = self._joining, None

        def step(engine: Engine) -> StepResult:
            events.begin_step()
            if joining is not None:
                admitted = self._admit_all(engine, joining.jobs, joining.callbacks)
                events.post(lambda: joining.joined(joining.jobs, admitted))
            return engine.step() if engine.has_work else NO_STEP

        self.begin_step(step)

    def _admit_all(
        self, engine: Engine, jobs: Sequence[PrefillJob], callbacks: Sequence[LayerCallback]
    ) -> list[AdmitResult | PenstockError]:
        return [
            _admit(engine, job, self._moving(on_layer)) for job, on_layer in zip(jobs, callbacks, strict=True)
        ]

    def _moving(self, on_layer: LayerCallback) -> LayerCallback:
        """Every layer is progress: a chunk of a large model may take longer than anything may stand still,
        and than whoever fetches a prefix from here should wait."""

        def call(layer: int, start_token: int, end_token: int) -> None:
            self.activity.move()
            on_layer(layer, start_token, end_token)
            self.carry_out_between_layers()

        return call


def _admit(engine: Engine, job: PrefillJob, on_layer: LayerCallback) -> AdmitResult | PenstockError:
    try:
        return engine.admit(
            job.key,
            job.spec.token_ids,
            job.spec.prompt_len,
            job.params,
            job.spec.block_hashes,
            stop_after=1,
            on_layer=on_layer,
            adapter=job.adapter,
            share=job.share,
            stay_s=job.stay_s,
            priority=job.priority,
            deadline_us=round(job.first_token.at_s * 1e6),
        )
    except PenstockError as error:
        return error
