"""The computations of a gateway that other requests may share, by what was asked."""

from __future__ import annotations

from collections.abc import Hashable

from services.gateway.session.computation import Computation
from shared.deadline import Deadline


class RunningComputations:
    """One computation for each key at most, the one that began last: no more than there are live sessions."""

    def __init__(self) -> None:
        self._running: dict[Hashable, Computation] = {}

    def find(
        self, key: Hashable, first_token: Deadline, position: int | None, *, logprobs: bool
    ) -> Computation | None:
        """Return one that a request may follow, as `Computation.takes` says, None where there is none."""
        computation = self._running.get(key)
        if computation is None or not computation.takes(first_token, position, logprobs=logprobs):
            return None
        return computation

    def begin(self, key: Hashable, computation: Computation) -> None:
        """Others may follow from now on."""
        self._running[key] = computation

    def end(self, key: Hashable, computation: Computation) -> None:
        """Nobody may follow any more; another one may be there since."""
        if self._running.get(key) is computation:
            del self._running[key]

    def __len__(self) -> int:
        return len(self._running)
