"""Try what is not believed to pay: as often as a small part of all steps pays for, who comes new first."""

from __future__ import annotations

SAVED_SHARE = 1 / 300
"""The part of every step that is put aside for tries: beyond what they bring they never cost more than that
of all steps."""
FIRST_SAVED = 0.5
"""Steps that there are at first, where nothing is believed yet, for FIRST_TRIES tries."""
FIRST_TRIES = 4
"""The most tries that are made of that: a try of one of many sequences costs little, and says as much."""
MOST_SAVED = 1.0
"""The most that there is. A try that costs more is made when there is as much, and the rest is owed."""


class Probes:
    """Pay for the tries of one thing, for all sequences together.

    Where each had its own, those that are over before they have one would never find out that it pays by now.
    What is dear is tried seldom, what is cheap more often, and what is of use pays for the next try. A
    sequence whose tries have failed waits until more is saved: there is something left for those that come.

    `first_saved`: what there is at first, in steps."""

    __slots__ = ("_first_saved", "_first_tries", "_saved")

    def __init__(self, first_saved: float = FIRST_SAVED) -> None:
        self._first_saved = first_saved
        self._first_tries = FIRST_TRIES
        self._saved = 0.0

    def begin_step(self) -> None:
        """Put something aside. Call it before each step."""
        self.put(SAVED_SHARE)

    def put(self, steps: float) -> None:
        """Put so many steps aside, as those that a try has saved."""
        self._saved = min(MOST_SAVED, self._saved + steps)

    def take(self, cost: float, needed: float, tries: int = 1) -> bool:
        """Return whether so many tries are made which take `cost` of the step together, where there is as
        much as `needed`; if so they are paid."""
        needed = min(needed, MOST_SAVED)
        if 0 < tries <= self._first_tries and needed <= self._first_saved:
            self._first_tries -= tries
            self._first_saved -= cost
            return True
        if self._saved < needed:
            return False
        self._saved -= cost
        return True


class Tries:
    """Make the tries of one sequence, which `probes` pays for."""

    __slots__ = ("_part", "_probes", "failures")

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self.failures = 0
        """The number of those that were verified in vain since the last one that was of use."""
        self._part = 0.0  # of a step that a right token saves, while a try runs

    def take(self, cost: float, sequences: float) -> bool:
        """Return whether a try is made that costs so many steps of its sequence, one of so many."""
        cost /= sequences
        if not self._probes.take(cost, cost * (1 + self.failures)):
            return False
        self.begin(sequences)
        return True

    def begin(self, sequences: float) -> None:
        """A try is made that is paid already, for one of so many sequences."""
        self._part = 1 / sequences

    def judge(self, accepted: int) -> None:
        """Take note that so many tokens were right of what was verified last, tried or not."""
        if accepted:
            self.failures = 0
            self._probes.put(accepted * self._part)
        elif self._part:
            self.failures += 1
        self._part = 0.0
