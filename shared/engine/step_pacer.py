"""Decide when the next step of an engine that goes first may begin, while prompts wait for its cores.
Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from shared.seams.clock import SYSTEM_CLOCK, Clock

LEAST_SHARE = 0.125
"""The least share of the time that steps take, however many prompts wait: streams go on, eight times slower
at worst."""
ITL_TARGET_S = 0.04
"""The longest time from token to token that pauses make, where nothing else is configured: that of MLPerf's
interactive scenario of inference. Steps that take longer follow each other."""
REMEMBERED_STEPS = 4
"""The quickest of them is what a step takes: whatever held the others up is no reason to pause longer. The
slowest is what the next one may take."""


@dataclass(frozen=True, slots=True)
class OwnRequests:
    """The requests that the next step is for: streams, and prompts that are computed beside them."""

    streams: int
    prompts: int = 0


@dataclass(frozen=True, slots=True)
class WaitingPrompts:
    """The number of prompts that want the same cores; `moves` changes while they are computed."""

    requests: int = 0
    moves: int = 0


class StepPacer:
    """While prompts wait, steps begin so far apart that they take no more of the time than is their requests'
    share: every request counts alike, a prompt `prompt_weight` times. But each begins in time to end within
    `itl_target_s` after the one before: streams that are quicker than that leave the rest to prompts.

    What holds a step up is taken from the pause behind it, so that the time between tokens stays even.
    Prompts that did not move through a whole pause are stopped or stuck: nobody pauses for them again until
    they move.
    """

    def __init__(
        self, prompt_weight: float, clock: Clock = SYSTEM_CLOCK, *, itl_target_s: float = ITL_TARGET_S
    ) -> None:
        self._prompt_weight = prompt_weight
        self._itl_target_s = itl_target_s
        self._clock = clock
        self._began_s = self._ended_s = 0.0
        self._took_s: deque[float] = deque((0.0,), REMEMBERED_STEPS)
        self._moves: int | None = None  # as the pause began
        self._stuck_at: int | None = None

    def begin_step(self) -> None:
        self._began_s = self._clock.monotonic_s()
        self._moves = None

    def end_step(self) -> None:
        self._ended_s = self._clock.monotonic_s()
        self._took_s.append(self._ended_s - self._began_s)

    def pause_s(self, own: OwnRequests, prompts: WaitingPrompts) -> float:
        """Return how long the next step has to wait from now on; 0: not at all."""
        ours = own.streams + self._prompt_weight * own.prompts
        theirs = self._prompt_weight * prompts.requests
        if not (ours and theirs) or prompts.moves == self._stuck_at:
            return 0.0
        share = max(LEAST_SHARE, ours / (ours + theirs))
        fair_s = self._began_s + min(self._took_s) / share
        latest_s = self._ended_s + self._itl_target_s - max(self._took_s)
        left_s = min(fair_s, latest_s) - self._clock.monotonic_s()
        if self._moves is None:  # first asked since the last step
            if left_s <= 0.0:
                return 0.0
            self._moves = prompts.moves
        if left_s > 0.0:
            return left_s
        self._stuck_at = prompts.moves if prompts.moves == self._moves else None
        return 0.0
