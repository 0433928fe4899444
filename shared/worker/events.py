"""Events that a worker's process sends its actor, besides the messages of the bus."""

from __future__ import annotations

from dataclasses import dataclass

TICK_S = 0.25
"""The time between two looks at leases, and at deadlines of what rests, while anything is held."""

CONTROL_LIMIT = 4096
"""Control messages that may wait for a worker: a cancel for each of its requests, many times over."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Started:
    """An Ask that is answered once the actor has its engine."""


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """The loss of an instance, as the fleet view tells it; `why` is suspect, stopped or restarted."""

    role: str
    instance: str
    why: str
