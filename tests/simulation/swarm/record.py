"""What happened while a plan was played, in words, and which properties were broken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Event:
    at_s: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:9.4f} s  {self.who:14} {self.what}"


@dataclass(frozen=True, slots=True)
class Broken:
    """`rule` is the property's name: a plan made smaller has to break the same one."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


class Record:
    """`stop` is set with the first property that is broken: what comes after that says nothing. `folder` is
    left out of what is noted: it has another name in each process."""

    def __init__(self, world: World, folder: str) -> None:
        self._world = world
        self._folder = folder
        self.expected_errors: set[str] = set()
        """The errors that may be logged: what breaks is their cause."""
        self.events: list[Event] = []
        self.broken: list[Broken] = []
        self.outcomes: Counter[str] = Counter()
        self.stop = asyncio.Event()
        self.disturbed = False
        """Whether anything has broken so far."""
        self.closed = False

    @property
    def now_s(self) -> float:
        return self._world.now_s

    def note(self, who: str, what: str) -> None:
        """Two runs of a seed agree in this too."""
        self._world.trace.called(self._world.loop.now_ns, who, what)
        self.events.append(Event(self._world.now_s, who, what))

    def breaks(self, rule: str, who: str, what: str) -> None:
        if self.closed:
            return
        self.note(who, f"BROKEN {rule}: {what}")
        self.broken.append(Broken(rule, f"{who}: {what}"))
        self.stop.set()

    def fails(self, error: Exception) -> None:
        """The world itself has come to an end that it should not, be it while it ends."""
        rule = f"the world goes on ({type(error).__name__})"
        self.events.append(Event(self._world.now_s, "world", f"BROKEN {rule}: {error}"))
        self.broken.append(Broken(rule, str(error)))

    def close(self) -> None:
        """The world ends: what is torn down now may complain."""
        self.closed = True

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Note warnings that services log in this block; an error in a log is a property that is broken."""

        def keep(_logger: object, method: str, event: Any) -> Any:
            node = self._world.loop.node.name
            error = event.get("exc_info") or event.get("error")
            said = ", ".join(
                f"{name} {one}" for name, one in event.items() if name not in ("event", "exc_info")
            )
            what = f"logs {event['event']}: {said}" + (f" ({error!r})" if event.get("exc_info") else "")
            what = what.replace(self._folder, "…")
            grave = method in ("error", "exception", "critical")
            if grave and event["event"] not in self.expected_errors:
                self.breaks(f"no error is logged ({event['event']})", node, what)
            elif not self.closed:
                self.note(node, what)
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(30))
        try:
            yield
        finally:
            structlog.configure(**before)
