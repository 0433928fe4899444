"""Drives the decode worker's engine: seats jobs between steps, steps with the drafts that have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.decode.drafts import Proposal
from services.decode.job import DecodeJob
from shared.engine import Engine, Reservation, StepResult
from shared.errors import PenstockError
from shared.worker.driver import EngineDriver


@dataclass(frozen=True, slots=True)
class Seating:
    """What became of each job, in the order given: a reservation or why not; why it was not attached."""

    reserved: list[Reservation | PenstockError]
    attached: list[PenstockError | None]


class DecodeDriver(EngineDriver[StepResult]):
    async def seat(self, new: Sequence[DecodeJob], ready: Sequence[DecodeJob]) -> Seating:
        """Reserve blocks for `new` jobs, let `ready` ones join the batch."""

        def run(engine: Engine) -> Seating:
            return Seating([_reserve(engine, job) for job in new], [_attach(engine, job) for job in ready])

        return await self.between_steps(run)

    def begin_step_with(self, proposals: Sequence[Proposal]) -> None:
        """Begin a step that verifies these drafts."""

        def step(engine: Engine) -> StepResult:
            for proposal in proposals:
                engine.propose(proposal.key, proposal.base, proposal.token_ids)
            return engine.step()

        self.begin_step(step)


def _reserve(engine: Engine, job: DecodeJob) -> Reservation | PenstockError:
    try:
        return engine.reserve(job.key, len(job.spec.token_ids), job.spec.block_hashes)
    except PenstockError as error:
        return error


def _attach(engine: Engine, job: DecodeJob) -> PenstockError | None:
    try:
        engine.attach(
            job.key,
            job.token_ids,
            job.spec.prompt_len,
            job.params,
            priority=job.priority,
            deadline_us=round(job.deadline.at_s * 1e6),
        )
    except PenstockError as error:
        return error
    return None
