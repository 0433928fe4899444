"""Choose which CPUs an engine's threads run on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shared.errors import InvalidRequest

MAX_CPU = 4095


def parse_cpus(text: str) -> tuple[int, ...]:
    """ "0,2-3" -> (0, 2, 3); "" -> (). Raises InvalidRequest for anything else."""
    cpus: list[int] = []
    for part in text.split(",") if text else ():
        ends = part.split("-")
        numbers = [int(end) for end in ends if end.isdecimal()]
        if len(ends) > 2 or len(numbers) < len(ends) or not numbers[0] <= numbers[-1] <= MAX_CPU:
            raise InvalidRequest(f"cpus {text!r} is not a list like 0,2-3 of CPU numbers up to {MAX_CPU}")
        cpus += range(numbers[0], numbers[-1] + 1)
    return tuple(cpus)


def stay_on(cpus: Sequence[int]) -> None:
    """Keep the calling thread, and every thread that it starts from now on, on `cpus`; () changes nothing.

    Raises InvalidRequest for CPUs that this process may not use.
    """
    if not cpus:
        return
    allowed = os.sched_getaffinity(0)
    if not allowed.issuperset(cpus):
        raise InvalidRequest(
            f"cpus {sorted(set(cpus) - allowed)} are not among {sorted(allowed)}, which this process may use"
        )
    os.sched_setaffinity(0, cpus)
