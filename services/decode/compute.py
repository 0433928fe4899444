"""The decode worker's engine: seats rows between steps, steps with the drafts that have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.decode.drafts import Proposal
from services.decode.row import Row
from shared.engine import Engine, Reservation, StepResult
from shared.errors import PenstockError
from shared.worker.driver import EngineDriver


@dataclass(frozen=True, slots=True)
class Seating:
    """What became of each row, in the order given: a reservation or why not; why it was not attached."""

    reserved: list[Reservation | PenstockError]
    attached: list[PenstockError | None]


class Compute(EngineDriver[StepResult]):
    async def seat(self, new: Sequence[Row], ready: Sequence[Row]) -> Seating:
        """Reserve blocks for `new` rows, let `ready` ones join the batch."""

        def run(engine: Engine) -> Seating:
            return Seating([_reserve(engine, row) for row in new], [_attach(engine, row) for row in ready])

        return await self.between_steps(run)

    def begin_step(self, proposals: Sequence[Proposal]) -> None:
        """Begin a step that verifies these drafts."""

        def step(engine: Engine) -> StepResult:
            for proposal in proposals:
                engine.propose(proposal.key, proposal.base, proposal.token_ids)
            return engine.step()

        self.begin(step)


def _reserve(engine: Engine, row: Row) -> Reservation | PenstockError:
    try:
        return engine.reserve(row.key, len(row.spec.token_ids), row.spec.block_hashes)
    except PenstockError as error:
        return error


def _attach(engine: Engine, row: Row) -> PenstockError | None:
    try:
        engine.attach(
            row.key,
            row.token_ids,
            row.spec.prompt_len,
            row.spec.params,
            priority=row.priority,
            deadline_us=round(row.deadline.at_s * 1e6),
        )
    except PenstockError as error:
        return error
    return None
