"""Draw what happens in a soak, and when. Pure: the same seed draws the same again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

ROLES = ("gateway", "tokenizer", "retriever", "prefill", "decode", "speculator", "detokenizer")
ROLLED = ("tokenizer", "decode", "detokenizer", "gateway")
ADDED = ("tokenizer", "prefill", "decode", "detokenizer")
MEAN_GAP_S = 5.0
LONGEST_GAP_S = 15.0
ROLLS_UNTIL = 0.2
"""The share of the time in which roles are rolled: what runs after that lives long enough to be judged."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """`kind` happens `after_s` the one before to `whom`, a role or the number of a nats-server, `for_s` long.

    `firmly`: a worker that goes is killed, a cut closes no connection, the first of a role is stopped.
    """

    after_s: float
    kind: str
    whom: str
    for_s: float = 0.0
    firmly: bool = False

    def __str__(self) -> str:
        for_s = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.kind} {self.whom}{for_s}{', firmly' if self.firmly else ''}"


class Schedule:
    """What happens, one after another and without an end; `share` is how much of the time has passed."""

    def __init__(self, seed: int) -> None:
        self._drawn = random.Random(seed)

    def draw(self, share: float) -> Disturbance:
        drawn = self._drawn
        kinds = [kind for kind in WEIGHTS if kind != "roll" or share < ROLLS_UNTIL]
        (kind,) = drawn.choices(kinds, [WEIGHTS[each] for each in kinds])
        after_s = min(LONGEST_GAP_S, drawn.expovariate(1 / MEAN_GAP_S))
        whom, for_s, firmly = MAKE[kind](drawn)
        return Disturbance(after_s, kind, whom, for_s, firmly)


Made = tuple[str, float, bool]


def _of_role(drawn: random.Random) -> Made:
    return drawn.choice(ROLES), 0.0, False


def _stopped(drawn: random.Random) -> Made:
    return drawn.choice(ROLES), drawn.uniform(0.3, 6.0), drawn.random() < 0.5


def _rolled(drawn: random.Random) -> Made:
    return drawn.choice(ROLLED), 0.0, False


def _added(drawn: random.Random) -> Made:
    return drawn.choice(ADDED), drawn.uniform(5.0, 25.0), drawn.random() < 0.4


def _server(drawn: random.Random) -> Made:
    return str(drawn.randrange(3)), drawn.uniform(0.5, 6.0), drawn.random() < 0.5


WEIGHTS = {
    "kill": 6,
    "stop": 5,
    "drain": 3,
    "restart": 1,
    "roll": 2,
    "add": 2,
    "nats kill": 2,
    "nats stop": 2,
    "nats cut": 2,
}
MAKE: dict[str, Callable[[random.Random], Made]] = {
    "kill": _of_role,
    "stop": _stopped,
    "drain": _of_role,
    "restart": _of_role,
    "roll": _rolled,
    "add": _added,
    "nats kill": _server,
    "nats stop": _server,
    "nats cut": _server,
}
