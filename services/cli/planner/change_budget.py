"""Bound how many instances come and go within a minute: a planner that errs does not do so at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class RoleChange:
    """A change of how many instances a role of a model has, from `now` to `wanted`."""

    model: str
    role: str
    now: int
    wanted: int
    why: str

    @property
    def size(self) -> int:
        return abs(self.wanted - self.now)

    @property
    def words(self) -> str:
        return f"{self.model} {self.role} {self.now} -> {self.wanted}: {self.why}"


class ChangeBudget:
    """Lets `per_minute` instances change in any minute at most; who comes is before who goes.

    The first instance of a model that rested always may: requests wait for it, and it rests seldom enough.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._times_s: deque[float] = deque(maxlen=per_minute)

    def allowed(
        self, now_s: float, changes: Sequence[RoleChange]
    ) -> tuple[list[RoleChange], list[RoleChange]]:
        """Return the changes that may be made now, cut where there is no room for all of one, and those that
        are put off. Nothing is counted yet: `spend` does that for what was done."""
        left = max(0, self._per_minute - self._spent(now_s))
        made, put_off = [], []
        for change in sorted(changes, key=lambda each: each.wanted < each.now):
            first = 1 if change.now == 0 else 0
            size = min(max(left, first), change.size)
            left = max(0, left - size)
            if size:
                wanted = change.now + (size if change.wanted > change.now else -size)
                made.append(replace(change, wanted=wanted))
            if size < change.size:
                put_off.append(change)
        return made, put_off

    def spend(self, now_s: float, changes: Sequence[RoleChange]) -> None:
        self._times_s.extend([now_s] * sum(change.size for change in changes))

    def _spent(self, now_s: float) -> int:
        return sum(1 for time_s in self._times_s if time_s > now_s - MINUTE_S)
