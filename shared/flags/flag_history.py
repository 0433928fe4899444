"""Keep all changes that somebody knows, and unite them with what another one knows. Pure.

A history is a set: two of them unite to the same one in whatever order, so that no gateway has to lead. A
number is one above all that were known (a Lamport clock), and where two gateways took a change at a time
their names tell the changes apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from shared.errors import InvalidRequest, NotFound
from shared.messages import FlagChange

MAX_FLAG_CHANGES = 512
"""The most changes that are kept. Of more, those that are over are forgotten, the oldest first."""
MAX_FLAGS = 64
"""The most changes that are in force at once."""
MAX_FLAG_NAME_CHARS = 64
"""The longest author, setting, value or origin of a change."""
MAX_FLAG_TARGET_CHARS = 256
"""The longest tenant or model that a change is for."""
MAX_REASON_CHARS = 300
"""The longest reason of a change."""
MAX_GUARD_CHARS = 256
"""The longest guard of a change."""
MAX_FLAG_NUMBER = 1 << 53
"""The greatest number of a change, and the latest time of one in unix microseconds: the year 2255."""
MAX_FLAG_DAYS = 90
"""The longest time, in days, for which a change that ends by itself is in force."""
DIGEST_BYTES = 8
ALL_CHANGES = "all"
"""The word for every change that is in force."""


@dataclass(frozen=True, slots=True)
class FlagHistory:
    """`changes` by number and origin. Of those with a number up to `forgotten` some were let go that were
    over: who still has one must not bring it back."""

    changes: tuple[FlagChange, ...] = ()
    forgotten: int = 0

    def united(self, changes: Iterable[FlagChange], forgotten: int = 0) -> FlagHistory:
        """Return what both know; of two changes of one name the later one counts."""
        mine = {change.version: change for change in self.changes}
        theirs = {change.version: change for change in changes}
        both = mine.keys() & theirs.keys()
        kept = [max(mine[name], theirs[name], key=lambda each: each.made_unix_us) for name in both]
        kept += [each for name, each in mine.items() if name not in both and each.number > forgotten]
        kept += [each for name, each in theirs.items() if name not in both and each.number > self.forgotten]
        return _trimmed(FlagHistory(_ordered(kept), max(self.forgotten, forgotten)))

    @property
    def next_number(self) -> int:
        return max((change.number for change in self.changes), default=self.forgotten) + 1

    @property
    def digest(self) -> str:
        """Return what is the same for those who know the same, "" where there is nothing to know."""
        names = "\n".join(change.version for change in self.changes)
        return blake2b(names.encode(), digest_size=DIGEST_BYTES).hexdigest() if names else ""

    def rolled_back(self) -> dict[str, FlagChange]:
        """Return each change that was ended, by its version, with the first one that ended it."""
        ended: dict[str, FlagChange] = {}
        for change in self.changes:
            if change.rolls_back:
                ended.setdefault(change.rolls_back, change)
        return ended

    def in_force(self, now_unix_us: int) -> tuple[FlagChange, ...]:
        """Return the changes that are in force, in the order in which they count: the most specific first,
        among equals the newest."""
        over = self.rolled_back()
        found = [
            change
            for change in self.changes
            if change.setting and change.version not in over and not _has_ended(change, now_unix_us)
        ]
        return tuple(sorted(found, key=lambda each: (specificity(each), each.number), reverse=True))

    def as_of(self, number: int) -> tuple[FlagChange, ...]:
        """Return what was in force when the change of that number had just been made, in order."""
        before = FlagHistory(tuple(change for change in self.changes if change.number <= number))
        now_unix_us = max((change.made_unix_us for change in before.changes), default=0)
        return before.in_force(now_unix_us)

    def find(self, name: str) -> FlagChange:
        """Return the change of that version, or number. Raises NotFound, InvalidRequest where two have it."""
        found = [each for each in self.changes if name in (each.version, str(each.number))]
        if not found:
            raise NotFound(
                f"there is no change {name[:80]!r}: `penstock flags history` lists those there are"
            )
        if len(found) > 1:
            names = ", ".join(each.version for each in found)
            raise InvalidRequest(f"{name} is the number of several changes: send one of {names}")
        return found[0]


def specificity(change: FlagChange) -> int:
    """Return how many of tenant, model and share a change names."""
    return bool(change.tenant) + bool(change.model) + (change.share < 1)


def change_problem(change: FlagChange) -> str:
    """Return what is wrong with a change from a peer or a file, "" for nothing."""
    texts = (
        ("origin", change.origin, MAX_FLAG_NAME_CHARS),
        ("author", change.author, MAX_FLAG_NAME_CHARS),
        ("reason", change.reason, MAX_REASON_CHARS),
        ("setting", change.setting, MAX_FLAG_NAME_CHARS),
        ("value", change.value, MAX_FLAG_NAME_CHARS),
        ("tenant", change.tenant, MAX_FLAG_TARGET_CHARS),
        ("model", change.model, MAX_FLAG_TARGET_CHARS),
        ("guard", change.guard, MAX_GUARD_CHARS),
        ("rolls_back", change.rolls_back, 2 * MAX_FLAG_NAME_CHARS),
    )
    for name, text, most in texts:
        if len(text) > most:
            return f"{name} has {len(text)} characters: send at most {most}"
    if bool(change.setting) == bool(change.rolls_back):
        return "it must either set something or roll a change back"
    if not (math.isfinite(change.share) and 0 < change.share <= 1):
        return f"share is {change.share:g}: send a number above 0 and at most 1"
    if not change.origin or not 1 <= change.number <= MAX_FLAG_NUMBER:
        return "it has no number or origin"
    if not (0 < change.made_unix_us <= MAX_FLAG_NUMBER and 0 <= change.ends_unix_us <= MAX_FLAG_NUMBER):
        return "it was made, or ends, at no time"
    return ""


def _has_ended(change: FlagChange, now_unix_us: int) -> bool:
    return 0 < change.ends_unix_us <= now_unix_us


def _ordered(changes: Iterable[FlagChange]) -> tuple[FlagChange, ...]:
    return tuple(sorted(changes, key=lambda each: (each.number, each.origin)))


def _trimmed(history: FlagHistory) -> FlagHistory:
    """Forget what is over, the oldest first, while there is too much: by the changes alone, so that all who
    know the same forget the same."""
    changes, forgotten = list(history.changes), history.forgotten
    while len(changes) > MAX_FLAG_CHANGES:
        over = _oldest_over(changes)
        if over is None:
            break
        changes.remove(over)
        forgotten = max(forgotten, over.number)
    return FlagHistory(tuple(changes), forgotten)


def _oldest_over(changes: list[FlagChange]) -> FlagChange | None:
    """Return the first change that was ended, or that ended one which is forgotten by now."""
    versions = {change.version for change in changes}
    rolled_back = {change.rolls_back for change in changes}
    latest_us = max(change.made_unix_us for change in changes)
    for change in changes:
        ends_nothing = change.rolls_back and change.rolls_back not in versions
        if ends_nothing or change.version in rolled_back or _has_ended(change, latest_us):
            return change
    return None
