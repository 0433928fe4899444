"""A real fleet for what is fuzzed over the network: what must hold after each input, and who broke it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from tests.fuzz.neighbour import Neighbour
from tests.fuzz.target import Fault, RunOne
from tests.support.stack import Stack, resident_mb

SETTLE_EVERY = 20
"""Inputs between two looks at the whole fleet; after a fault it is looked at after each."""
IDLE_S = 30.0
MAX_GROWN_MB = 400.0
"""The memory that a process of the fleet may take beside what it had when it was ready."""
LOG_S = 0.1
"""The longest delay until a line of the log is read here."""
DENIED = "bus_permission_denied"
"""The server has refused what somebody may not say, as it should: to a name that a message made up."""
BAD_LEVELS = ("error", "critical")


class Fleet:
    """`send` gives one input to the stack; raises Fault for an answer that breaks an invariant."""

    def __init__(self, stack: Stack, send: RunOne, neighbour: Neighbour | None = None) -> None:
        self._stack = stack
        self._neighbour = neighbour
        self._send = send
        self._read = len(stack.log)
        self._since: list[bytes] = []
        self._settle_every = SETTLE_EVERY
        self._pids = {instance.id: instance.pid for instance in stack.instances()}
        self._mb = {name: resident_mb(pid) for name, pid in self._pids.items()}

    def run_one(self, data: bytes) -> None:
        self._since.append(data)
        self._send(data)
        if len(self._since) < self._settle_every:
            return
        since, self._since = self._since, []
        try:
            self.settle()
        except Fault as fault:
            self._settle_every = 1
            self._blame(since, fault)

    def settle(self) -> None:
        """Raise Fault unless nothing is held, nobody has ended or grown, and no error was logged."""
        with nullcontext() if self._neighbour is None else self._neighbour.silent():
            self._settle()

    def _settle(self) -> None:
        try:
            asyncio.run(self._stack.until_idle(IDLE_S))
        except AssertionError as error:
            raise Fault(str(error)[:2000]) from error
        time.sleep(LOG_S)
        new, self._read = self._stack.log[self._read :], len(self._stack.log)
        bad = [line for line in new if _is_bad(line)]
        if bad:
            raise Fault("logged: " + "\n".join(bad[:3])[:4000])
        if self._pids != (now := {instance.id: instance.pid for instance in self._stack.instances()}):
            changed = [name for name in self._pids | now if self._pids.get(name) != now.get(name)]
            self._pids = now
            raise Fault(f"{', '.join(changed)} ended and began anew: " + "\n".join(self._stack.log)[-4000:])
        for name, pid in self._pids.items():
            if resident_mb(pid) > self._mb.get(name, 0.0) + MAX_GROWN_MB:
                raise Fault(f"{name} has grown from {self._mb[name]:.0f} to {resident_mb(pid):.0f} MB")

    def _blame(self, since: list[bytes], fault: Fault) -> None:
        """Raise the fault of the one input that breaks it alone, else that of all of them."""
        for data in since if len(since) > 1 else []:
            try:
                self._send(data)
                self.settle()
            except Fault as alone:
                alone.data = data
                raise
        raise fault


def _is_bad(line: str) -> bool:
    name, _, told = line.partition(" | ")
    if told.startswith("{"):
        try:
            said = json.loads(told)
            return said.get("level") in BAD_LEVELS and said.get("event") != DENIED
        except ValueError:
            return True
    return "Traceback" in told or (name == "penstock" and ("exited" in told or "restart" in told))


_lent: dict[tuple[str, ...], Stack] = {}
"""Stacks that several targets are tried on one after another, by their options."""


@contextmanager
def lent_fleet(*options: str) -> Iterator[None]:
    """Meanwhile targets that want a fleet of these options have this one, and leave it running."""
    with Stack(*options) as stack:
        _lent[options] = stack
        try:
            yield
        finally:
            del _lent[options]


_watched: list[Neighbour] = []
"""The neighbour that stands beside the inputs of a fleet, if there is one."""


@contextmanager
def watched_by(neighbour: Neighbour) -> Iterator[None]:
    """Meanwhile it stands beside the inputs of each fleet that is opened."""
    _watched.append(neighbour)
    try:
        yield
    finally:
        _watched.remove(neighbour)


@contextmanager
def opened_fleet(sender: Callable[[Stack], RunOne], *options: str) -> Iterator[RunOne]:
    """Start a fleet of the built-in models. `sender` makes what sends one input to it."""
    lent = _lent.get(options)
    with Stack(*options) if lent is None else nullcontext(lent) as stack, ExitStack() as beside:
        neighbour = _watched[-1] if _watched else None
        if neighbour is not None:
            beside.enter_context(neighbour.beside(stack.grpc))
        fleet = Fleet(stack, sender(stack), neighbour)
        yield fleet.run_one
        fleet.settle()
