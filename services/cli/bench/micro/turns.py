"""Sides that work in turns, because other load comes and goes, and what a turn of each costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from nats.errors import Error as NatsError

from services.cli.bench.run.server_watch import process_cpu_s
from services.cli.bench.targets.target import CallEnded
from shared.errors import Unavailable

TURN_DEADLINE_S = 60.0
"""The longest that one turn of one side may take."""
MOST_ROUNDS = 10_000
"""The most rounds, however short they are."""

TurnWork = Callable[[int], Awaitable[None]]
"""The work of one turn, which gets its number from 0."""


@dataclass(frozen=True, slots=True)
class TurnSide:
    """`pids` are the processes that work for it: their CPU time is its cost, and that of this process where
    it works `here`, too."""

    work: TurnWork
    pids: tuple[int, ...] = ()
    here: bool = True

    def spent_s(self) -> float:
        here_s = time.process_time() if self.here else 0.0
        return here_s + sum(map(process_cpu_s, self.pids))


@dataclass(frozen=True, slots=True)
class TurnCost:
    """`cpu_s`: of this process and all others that worked for the side."""

    wall_s: float
    cpu_s: float


async def take_turns(
    sides: Mapping[str, TurnSide], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[TurnCost]]:
    """Let all sides work in rounds until the time is over, in the opposite order every other round.

    The first round warms up and does not count; one more follows at least. Raises Unavailable for a turn that
    takes longer than TURN_DEADLINE_S or breaks off.
    """
    names = list(sides)
    costs: dict[str, list[TurnCost]] = {name: [] for name in names}
    began_s = clock()
    for number in range(MOST_ROUNDS + 1):
        for name in names if number % 2 else reversed(names):
            cost = await _turn(name, sides[name], number)
            if number:
                costs[name].append(cost)
        if number == 0:
            began_s = clock()
        elif clock() - began_s >= seconds:
            break
    return costs


async def _turn(name: str, side: TurnSide, number: int) -> TurnCost:
    try:
        spent_s, began_s = side.spent_s(), time.perf_counter()
        async with asyncio.timeout(TURN_DEADLINE_S):
            await side.work(number)
        wall_s = time.perf_counter() - began_s
        return TurnCost(wall_s, side.spent_s() - spent_s)
    except TimeoutError as error:
        raise Unavailable(
            f"{name} has not finished a turn after {TURN_DEADLINE_S:g} s; is the machine overloaded?"
        ) from error
    except (OSError, EOFError, NatsError, CallEnded) as error:
        raise Unavailable(f"{name} broke off: {error!r}") from error
