"""One input after another through a target, each with a bound on its time; what fails is made small."""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from tests.fuzz.target import RunOne

MAX_CPU_S = 10.0
"""The processor time that one input may take here."""
MAX_SHRINK_TRIES = 400
MAX_SHRINK_S = 30.0
OWN_PLACES = ("/services/", "/shared/", "/tests/fuzz/", "/protos/")


class TookTooLong(BaseException):
    """An input took more than MAX_CPU_S; no Exception, so that nobody takes it for a bad input."""


@dataclass(frozen=True, slots=True)
class Find:
    """An input that broke an invariant. Two of the same `kind` are the same fault."""

    data: bytes
    kind: str
    report: str


@contextmanager
def bounded_time() -> Iterator[None]:
    """Raise TookTooLong in the middle of what takes too much processor time, if that is Python."""

    def end(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise TookTooLong(f"one input took more than {MAX_CPU_S:g} s of a processor")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def try_input(run_one: RunOne, data: bytes) -> Find | None:
    """Return what is wrong, None where the input was taken or refused as it should be."""
    try:
        with bounded_time():
            run_one(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a find
        data = getattr(error, "data", None) or data
        return Find(data, _kind(error), "".join(traceback.format_exception(error, limit=-12)))
    return None


def _kind(error: BaseException) -> str:
    """Name the type of the error and the last line of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if any(place in frame.filename for place in OWN_PLACES)]
    if isinstance(error, TookTooLong):  # it strikes anywhere
        return type(error).__name__
    last = ours[-1] if ours else frames[-1]
    return f"{type(error).__name__} in {last.filename.rpartition('/')[2]} {last.name}"


def shrunk(run_one: RunOne, find: Find, clock: Callable[[], float] = time.monotonic) -> Find:
    """Leave out of the input what it need not have to fail in the same way, larger pieces first."""
    end_s, tries = clock() + MAX_SHRINK_S, 0
    size = len(find.data) // 2
    while size:
        place = 0
        while place < len(find.data):
            tries += 1
            if tries > MAX_SHRINK_TRIES or clock() > end_s:
                return find
            smaller = try_input(run_one, find.data[:place] + find.data[place + size :])
            if smaller is not None and smaller.kind == find.kind:
                find = smaller
            else:
                place += size
        size //= 2
    return find


def seeded(name: str, seed: int, number: int) -> random.Random:
    """Return the source of try `number` of a target: the same whatever was tried before."""
    return random.Random(f"{name} {seed} {number}")
