"""Try what is not believed to pay: as often as a small part of all steps pays for, who comes new first."""

from __future__ import annotations

SAVED_SHARE = 1 / 300
"""The part of every step that is put aside for tries: beyond what they bring they never cost more than that
of all steps."""
FIRST_SAVED = 0.5
"""Steps that there are at first, where nothing is believed yet."""
MOST_SAVED = 1.0
"""The most that there is. A try that costs more is made when there is as much, and the rest is owed."""


class Probes:
    """Pay for the tries of one thing, for all sequences together.

    Where each had its own, those that are over before they have one would never find out that it pays by now.
    What is dear is tried seldom, what is cheap more often, and what is of use pays for the next try. A
    sequence whose tries have failed waits until more is saved: there is something left for those that come.

    `saved`: what there is at first, in steps."""

    __slots__ = ("_saved",)

    def __init__(self, saved: float = FIRST_SAVED) -> None:
        self._saved = saved

    def begin_step(self) -> None:
        """Put something aside. Call it before each step."""
        self._put(SAVED_SHARE)

    def take(self, cost: float, failures: int) -> bool:
        """Return whether a try is made which takes `cost` of the step, for a sequence of which so many have
        failed; if so it is paid."""
        if self._saved < min(cost * (1 + failures), MOST_SAVED):
            return False
        self._saved -= cost
        return True

    def succeed(self, steps: float) -> None:
        """Take in that a try has saved so many steps."""
        self._put(steps)

    def _put(self, steps: float) -> None:
        self._saved = min(MOST_SAVED, self._saved + steps)


class Tries:
    """Make the tries of one sequence, which `probes` pays for."""

    __slots__ = ("_failures", "_part", "_probes")

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._failures = 0  # that were verified in vain, since the last that was of use
        self._part = 0.0  # of a step that a right token saves, while a try runs

    def take(self, cost: float, sequences: float) -> bool:
        """Return whether a try is made that costs so many steps of its sequence, one of so many."""
        if not self._probes.take(cost / sequences, self._failures):
            return False
        self._part = 1 / sequences
        return True

    def judge(self, accepted: int) -> None:
        """Take note that so many tokens were right of what was verified last, tried or not."""
        if accepted:
            self._failures = 0
            self._probes.succeed(accepted * self._part)
        elif self._part:
            self._failures += 1
        self._part = 0.0
