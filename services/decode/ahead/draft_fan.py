"""Choose for how many outcomes of a round a speculator is asked to draft ahead. Pure."""

from __future__ import annotations

from shared.worker.drafts.draft_tree import MAX_BRANCHES

MEMORY = 0.8
"""Weight of the past in the share of rounds whose branches came in time: about five rounds."""
LEAST_IN_TIME = 0.25
"""Below this share nothing is prepared: the speculator is slower than the rounds."""
PROBE_AFTER_ROUNDS = 32
"""A session without branches asks for some again this often: a speculator may have less to do by then."""
STEP_BRANCHES = 256
"""Branches asked for per step over the whole batch: about 8 kB on the bus, and 1 ms to read them."""


class DraftFan:
    """Per session. `widest` is the configured number of ids that may follow at each place; 0 turns it off."""

    def __init__(self, widest: int) -> None:
        self._widest = widest
        self.in_time = 1.0
        self._rounds_off = 0

    def observe(self, *, in_time: bool) -> None:
        """A round has ended for which branches were asked."""
        self.in_time = MEMORY * self.in_time + (1 - MEMORY) * in_time

    def next(self, num_tokens: int, num_sessions: int) -> int:
        """Ids to prepare for behind each of `num_tokens` guesses and of none; `num_sessions` share a step."""
        places = num_tokens + 1
        widest = min(self._widest, MAX_BRANCHES // places, STEP_BRANCHES // (places * max(1, num_sessions)))
        if widest <= 0 or num_tokens <= 0:
            return 0
        if self.in_time >= LEAST_IN_TIME:
            self._rounds_off = 0
            return widest
        self._rounds_off += 1
        if self._rounds_off < PROBE_AFTER_ROUNDS:
            return 0
        self._rounds_off = 0
        return 1
