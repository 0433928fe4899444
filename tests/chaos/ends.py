"""Count the calls of loads by how they ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.chaos.load import Load

WAITED_SHARE = 0.8
"""The share of its time to the first token that an expired request has waited: a full gateway ends requests
a little early, so that all of them hear of it."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The calls of loads by their ends; `hops` says where those that have expired were.

    As expired count those alone that waited for as long as they had: else nobody would see a deadline that is
    counted wrongly.
    """

    sent: int
    finished: int
    shed: int
    expired: int
    hops: str

    @classmethod
    def of(cls, loads: list[Load], ttft_ms: int) -> Ends:
        sent = sum(len(load.calls) for load in loads)
        finished, shed = (sum(len(load.ended(outcome)) for load in loads) for outcome in ("finished", "shed"))
        waited = [
            call
            for load in loads
            for call in load.ended("expired")
            if call.total_s * 1e3 >= WAITED_SHARE * ttft_ms
        ]
        hops = Counter(call.answer.end.error.hop for call in waited if call.answer.end is not None)
        where = "".join(f", {count} at {hop}" for hop, count in hops.most_common())
        return cls(sent, finished, shed, len(waited), where)

    @property
    def other(self) -> int:
        return self.sent - self.finished - self.shed - self.expired

    @property
    def cells(self) -> tuple[int, int, int, int, int]:
        """The cells of a row in this order."""
        return self.sent, self.finished, self.shed, self.expired, self.other
