"""Follow the scale file: instances are added to a stack that serves, and others drain and are not started
again.

An instance that cannot be started ends nothing else: it is told why, and tried again by the next scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from services.launcher.processes.instance import Instance
from shared.errors import PenstockError
from shared.files.scale_file import StackScale, read_scale
from shared.roles import REQUIRED_ROLES
from shared.tasks import start_task


class ScaledStack(Protocol):
    """The stack, as far as a scale changes it."""

    @property
    def instances(self) -> list[Instance]: ...

    def start_like(self, name: str, like: Instance) -> tuple[Instance, asyncio.Task[None]]: ...

    def forget_instance(self, instance: Instance) -> None: ...

    def drain(self, instance: Instance, patience_s: float) -> Coroutine[Any, Any, None]:
        """Let it finish what it has; returns when its process has ended."""
        ...


class ScaleFollower:
    """`number` is that of the scale that is followed now, 0 of none; `trouble` why an instance could not be
    started, "" for nothing."""

    def __init__(
        self, state_dir: Path, stack: ScaledStack, num_models: int, say: Callable[[str], None]
    ) -> None:
        self.number = 0
        self.trouble = ""
        self._state_dir = state_dir
        self._stack = stack
        self._num_models = num_models
        self._say = say
        self._lives: dict[Instance, asyncio.Task[None]] = {}
        """Instances that a scale has started, and their lives: the end of one is nobody else's."""
        self._drains: dict[Instance, asyncio.Task[None]] = {}
        self._told = ""
        self._last_of: dict[tuple[str, int], Instance] = {}
        """The last instance that was there of each role and model: what comes again does what it did."""

    @property
    def remembered(self) -> list[Instance]:
        """Instances that are gone, of whose role and model there is no other: others may be started like
        them."""
        return [instance for instance in self._last_of.values() if instance not in self._stack.instances]

    def is_of_scale(self, instance: Instance) -> bool:
        """Return whether a scale has started it, or lets it end: its end ends nothing else."""
        return instance in self._lives or instance in self._drains

    def look(self, *, only_ends: bool = False) -> None:
        """Do what the file says by now; with `only_ends` nobody is started or told to end."""
        self._see_ends()
        if only_ends:
            return
        try:
            scale = read_scale(self._state_dir)
        except PenstockError as error:
            if error.message != self._told:
                self._told = error.message
                self._say(error.message)
            return
        if scale is None:
            return
        if scale.number != self.number:
            self.number, self.trouble = scale.number, ""
        for role, count in scale.counts.items():
            self._keep(role, count, scale)

    def _keep(self, role: str, count: int, scale: StackScale) -> None:
        """Have `count` instances of a role, the first ones by number, less those that are to be absent."""
        known = {_number(each): each for each in self._stack.instances if each.spec.role == role}
        wanted = {number for number in range(count) if f"{role}-{number}" not in scale.absent}
        models = self._models_of(role)
        for number, instance in known.items():
            self._last_of[role, number % models] = instance
            if number not in wanted and instance not in self._drains:
                self._let_end(instance, scale.patience_s)
        for number in sorted(wanted - known.keys()):
            like = known.get(number % models) or self._last_of.get((role, number % models))
            if like is None or self.trouble:
                return
            self._start(f"{role}-{number}", like)

    def _models_of(self, role: str) -> int:
        """Each of several models has the next instance in turn, of the roles that serve one."""
        return self._num_models if role in REQUIRED_ROLES else 1

    def _start(self, name: str, like: Instance) -> None:
        self._say(f"{name} is started, and does what {like.spec.instance} does")
        instance, life = self._stack.start_like(name, like)
        self._lives[instance] = life

    def _let_end(self, instance: Instance, patience_s: float) -> None:
        self._say(f"{instance.spec.instance} drains, and is not started again")
        instance.let_end()
        drain = self._stack.drain(instance, patience_s)
        self._drains[instance] = start_task(drain, name=f"drain-{instance.spec.instance}")

    def _see_ends(self) -> None:
        for instance, drain in list(self._drains.items()):
            if drain.done():
                drain.result()
                self._forget(instance)
        for instance, life in list(self._lives.items()):
            if not life.done() or instance in self._drains:
                continue
            error = None if life.cancelled() else life.exception()
            if isinstance(error, PenstockError):
                self.trouble = error.message
                self._say(f"{error.message}; nobody else is ended for that")
            elif error is not None:
                raise error
            self._forget(instance)

    def _forget(self, instance: Instance) -> None:
        self._drains.pop(instance, None)
        self._lives.pop(instance, None)
        self._stack.forget_instance(instance)


def _number(instance: Instance) -> int:
    return int(instance.spec.instance.rpartition("-")[2])
