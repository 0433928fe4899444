"""Follow the roll file: start other code than before from now on, and an instance that stands in for others.

`penstock roll` decides what is rolled and when; the launcher keeps the processes. What it does not do is
end a stack for a stand-in that cannot be started: the instances that serve go on, and it is told why.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from services.launcher.plan import fork_server_environ
from services.launcher.processes.forker import Forker
from services.launcher.processes.instance import Instance, InstanceSpec
from shared.errors import PenstockError
from shared.files.roll_file import StackRoll, read_roll

PATH_VARIABLE = "PYTHONPATH"


class InstanceKeeper(Protocol):
    """The stack, as far as a roll changes it."""

    @property
    def instances(self) -> list[Instance]: ...

    @property
    def startable(self) -> list[Instance]:
        """Return them, and others that are gone and may come again."""
        ...

    def start_stand_in(self, name: str, stands_for: Instance) -> tuple[Instance, asyncio.Task[None]]: ...

    def forget_instance(self, instance: Instance) -> None: ...


class RollFollower:
    """`number` is that of the roll whose code is started now, 0 of none; `trouble` why its stand-in could not
    be started, "" for nothing."""

    def __init__(
        self, state_dir: Path, keeper: InstanceKeeper, forker: Forker | None, say: Callable[[str], None]
    ) -> None:
        self.number = 0
        self.trouble = ""
        self._state_dir = state_dir
        self._keeper = keeper
        self._forker = forker
        self._say = say
        self._stand_in: Instance | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False
        self._asked = ""
        """The stand-in that was started last for this roll."""
        self._told = ""

    @property
    def stand_in(self) -> str:
        """Return the name of the instance that stands in now, "" for none."""
        return "" if self._stand_in is None else self._stand_in.spec.instance

    def is_stand_in(self, instance: Instance) -> bool:
        """Return whether it is one: its end ends nothing else."""
        return instance is self._stand_in

    def look(self) -> None:
        """Do what the file says by now."""
        self._see_end()
        try:
            roll = read_roll(self._state_dir)
        except PenstockError as error:
            if error.message != self._told:
                self._told = error.message
                self._say(error.message)
            return
        if roll is None:
            return
        if roll.number != self.number:
            self._take_code(roll)
        if self._stand_in is not None:
            if roll.stand_in != self.stand_in and not self._is_ending:
                self._is_ending = True  # a second signal would end it at once
                self._stand_in.terminate()
        elif roll.stand_in and roll.stand_in != self._asked:
            self._start(roll)
        if not roll.stand_in:
            self._asked = ""

    def _take_code(self, roll: StackRoll) -> None:
        self.number, self.trouble, self._asked = roll.number, "", ""
        self._say(f"instances that start from now on run the code in {roll.root}")
        for instance in self._keeper.startable:
            instance.spec = with_code(instance.spec, roll.python, roll.root)
        if self._forker is not None:
            self._forker.renew(roll.python, environ_with_code(fork_server_environ(), roll.root))

    def _start(self, roll: StackRoll) -> None:
        self._asked = roll.stand_in
        found = [each for each in self._keeper.instances if each.spec.instance == roll.stands_for]
        if not found:
            self.trouble = f"there is no instance {roll.stands_for!r} to stand in for"
            return
        self._say(f"{roll.stand_in} is started to stand in for {roll.stands_for}")
        self._stand_in, self._task = self._keeper.start_stand_in(roll.stand_in, found[0])

    def _see_end(self) -> None:
        if self._stand_in is None or self._task is None or not self._task.done():
            return
        error = None if self._task.cancelled() else self._task.exception()
        if isinstance(error, PenstockError):
            self.trouble = error.message
            self._say(f"{error.message}; nobody else is ended for that")
        elif error is not None:
            raise error
        self._keeper.forget_instance(self._stand_in)
        self._stand_in = self._task = None
        self._is_ending = False


def with_code(spec: InstanceSpec, python: str, root: str) -> InstanceSpec:
    """Return what runs the same service by other code; what is no service of ours stays as it is."""
    if not spec.module:
        return spec
    return dataclasses.replace(
        spec, command=(python, *spec.command[1:]), environ=environ_with_code(spec.environ, root)
    )


def environ_with_code(environ: Mapping[str, str], root: str) -> dict[str, str]:
    """Return an environment whose first path is the root of the code, in the place of the one before."""
    _, *others = environ[PATH_VARIABLE].split(os.pathsep)
    return {**environ, PATH_VARIABLE: os.pathsep.join((root, *others))}
