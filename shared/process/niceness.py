"""Let processes that share cores go in an order: gateways, then what passes things on, then what computes.

Numbers are of `nice`: each step is about a fifth less time of two that both want to run, and no privilege is
needed to step back. Measured on two cores at three times the load (`make drills DRILLS=deadline`).
"""

from __future__ import annotations

import os

PASSING_NICE = 8
"""The other services step back so far for gateways. All requests go through one loop there, and gRPC lets one
in per turn or two of it: where that loop had to wait for a core as the others do, calls waited for up to 0.7
s to be let in, and ended 150 to 500 ms after their deadlines (p99). With 3 it was 34 to 70 ms, with 5 8 to
60, with 8 12 to 15, with 10 8."""
COMPUTING_NICE = 12
"""A thread that computes steps back so far. The others only pass things on, a moment each: one that must wait
for a step to end makes every stream late, and every deadline. (Where all else stayed at 0, ends came 1.0 to
1.6 s after their deadlines without it, 84 ms with 5, 17 to 39 ms with 10.)"""

STANDING_BACK_NICE = 19
"""A thread whose work only its own request waits for: what others wait for goes on beside it."""


def step_back(role: str) -> None:
    """This process of a service, before it starts threads: each begins with what its parent has."""
    if role != "gateway":
        os.nice(PASSING_NICE)


def give_way() -> None:
    """This thread of a service computes, as will those that it starts. Not so the loop of its process."""
    os.nice(COMPUTING_NICE - PASSING_NICE)


def stand_back() -> None:
    """This thread does what one request alone waits for."""
    make_stand_back(0)


def make_stand_back(thread_id: int) -> None:
    """Let a thread or process stand back, by its id, which is 0 for this thread.

    Raises ProcessLookupError when it has ended.
    """
    os.setpriority(os.PRIO_PROCESS, thread_id, STANDING_BACK_NICE)
