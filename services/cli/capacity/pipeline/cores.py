"""The cores that workers compute on, and those that nobody else wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.cli.capacity.pipeline.event_line import EventLine

Done = Callable[..., None]


@dataclass(slots=True, eq=False)
class CoreUser:
    """The part of a worker that computes, one piece of work at a time; alone it takes `most_cores`.

    `goes_first`: it has half of a machine's cores beside those that do not, as decode has beside prefill.
    """

    goes_first: bool
    most_cores: float
    alone_s: float = 0.0
    """The time that its work so far would have taken alone."""
    took_s: float = 0.0
    left_s: float = 0.0
    """The part of the piece under way that is left, as time alone."""
    wanted: float = 0.0
    """The cores that it may have beside those that compute now."""
    granted: float = 0.0
    """The cores that it has now."""
    moved_s: float = 0.0
    began_s: float = 0.0
    done: Done | None = None
    """The call that is made when the piece is done; None: there is none."""
    expected: bool = False
    """Whether its end is put on the line of events."""
    version: int = 0


class Cores(Protocol):
    """`stepwise`: how long work takes depends on others, so that steps are to be asked for one by one."""

    stepwise: bool

    def compute(self, who: CoreUser, alone_s: float, done: Done) -> None:
        """Compute a piece of work that takes so long alone."""

    def spend(self, cpu_s: float, done: Done | None = None, *given: object) -> None:
        """Do small work of one core, which goes first."""


class OwnCores:
    """Everybody has cores of their own: work takes as long as alone."""

    __slots__ = ("_line",)
    stepwise = False

    def __init__(self, line: EventLine) -> None:
        self._line = line

    def compute(self, who: CoreUser, alone_s: float, done: Done) -> None:
        who.alone_s += alone_s
        who.took_s += alone_s
        self._line.at(self._line.now_s + alone_s, done)

    def spend(self, cpu_s: float, done: Done | None = None, *given: object) -> None:
        if done is not None:
            self._line.at(self._line.now_s + cpu_s, done, *given)
