"""The turns that one client asks: they wait for the answer before; a single request is one turn."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Protocol

from services.cli.bench.plan.conduct import Conduct


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Dialogue:
    """`number` counts dialogues of a load from 0. `at_s`: when it begins, since the load did; None: when
    somebody is free. `lap`: how often its source had been through before."""

    turns: tuple[DialogueTurn, ...]
    source: str
    system: str = ""
    at_s: float | None = None
    number: int = 0
    lap: int = 0
    conduct: Conduct = Conduct.WELL
    amount: int = 0

    def at(self, at_s: float | None) -> Dialogue:
        return replace(self, at_s=at_s)


class DialogueSource(Protocol):
    """A place that dialogues come from; those of a trace have their times."""

    @property
    def has_times(self) -> bool: ...

    def dialogues(self) -> Generator[Dialogue]:
        """Yield them in order. Raises InvalidRequest for a line of a file that cannot be used."""
        ...
