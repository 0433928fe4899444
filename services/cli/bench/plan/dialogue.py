"""The turns that one client asks: they wait for the answer before; a single request is one turn.

An agent has helpers beside its own turns, which ask at the same time as it does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Protocol

from services.cli.bench.plan.conduct import Conduct


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """`prompt` is a text, or makes it when it is needed: those of a long session do not all fit in memory.
    `whole`: it is all of the prompt, else what was said before stands before it. `pause_s`: from the end of
    what it waits for until it is asked; None: as for all."""

    prompt: str | Callable[[], str]
    max_tokens: int
    whole: bool = False
    pause_s: float | None = None

    @property
    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt()


@dataclass(frozen=True, slots=True)
class Helper:
    """An agent that another one begins, `begins_s` after the end of its turn `after`, or of its beginning
    where that is -1. The other's turn `before` waits until it has ended; None: nothing does."""

    turns: tuple[DialogueTurn, ...]
    after: int
    begins_s: float
    before: int | None
    helpers: tuple[Helper, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialogue:
    """`number` counts dialogues of a load from 0. `at_s`: when it begins, since the load did; None: when
    somebody is free. `lap`: how often its source had been through before. `mark`: a text that begins its
    prompts and nobody else's. `json_schema`: its answers fit it; "" is none."""

    turns: tuple[DialogueTurn, ...]
    source: str
    system: str = ""
    helpers: tuple[Helper, ...] = ()
    mark: str = ""
    at_s: float | None = None
    number: int = 0
    lap: int = 0
    conduct: Conduct = Conduct.WELL
    amount: int = 0
    json_schema: str = ""

    def at(self, at_s: float | None) -> Dialogue:
        return replace(self, at_s=at_s)


class DialogueSource(Protocol):
    """A place that dialogues come from; those of a trace have their times."""

    @property
    def has_times(self) -> bool: ...

    def dialogues(self) -> Generator[Dialogue]:
        """Yield them in order. Raises InvalidRequest for a line of a file that cannot be used."""
        ...
