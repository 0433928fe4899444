"""The usual rate by the time of day and of the week, as it was on days before."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.cli.planner.arrival_window import ArrivalWindow
from shared.errors import InvalidRequest
from shared.files.atomic_write import write_file

SLOT_S = 900.0
"""The time of which one mean is kept: a quarter of an hour."""
DAY_SLOTS = 96
WEEK_SLOTS = 7 * DAY_SLOTS
KINDS = {"week": WEEK_SLOTS, "day": DAY_SLOTS}
MAX_SEASON_BYTES = 4 << 20
"""The largest file of seasons."""
LEAST_COVERED = 0.5
"""A slot of which less was seen says nothing of its rate."""
NEW_SHARE = 0.4
"""The part that the latest day has in the mean of a slot."""


class Seasons:
    """A mean for each quarter of an hour of the week, and one for each of the day, newer ones counting more.

    The time of day is UTC: where clocks change, so does what is usual, and it is learnt anew within days.
    Memory is 768 numbers, however long it goes. `means` are those that were kept before.
    """

    def __init__(self, means: Mapping[str, Mapping[int, float]] | None = None) -> None:
        self.means: dict[str, dict[int, float]] = {kind: dict((means or {}).get(kind, {})) for kind in KINDS}
        """Requests a second by slot, of the week and of the day."""
        self._slot = -1
        self._requests = self._covered_s = 0.0

    def add(self, window: ArrivalWindow) -> None:
        """Count a window; they come in the order of time, with gaps where nothing was seen."""
        slot = math.floor(window.middle_s / SLOT_S)
        if slot != self._slot:
            self._close()
            self._slot, self._requests, self._covered_s = slot, 0.0, 0.0
        self._requests += window.requests
        self._covered_s += window.span_s

    def usual(self, at_s: float) -> float | None:
        """Return the usual requests a second at a time of day, None where those around it were never seen."""
        place = at_s / SLOT_S - 0.5
        first = math.floor(place)
        before, after = self._mean(first), self._mean(first + 1)
        if before is None or after is None:
            return None
        return before + (place - first) * (after - before)

    def _close(self) -> None:
        if self._covered_s < LEAST_COVERED * SLOT_S:
            return
        rate = self._requests / self._covered_s
        for kind, slots in KINDS.items():
            means, slot = self.means[kind], self._slot % slots
            before = means.get(slot, rate)
            means[slot] = before + NEW_SHARE * (rate - before)

    def _mean(self, slot: int) -> float | None:
        """Return that of the same time of the week, else of the same time of any day."""
        of_week = self.means["week"].get(slot % WEEK_SLOTS)
        return self.means["day"].get(slot % DAY_SLOTS) if of_week is None else of_week


def read_seasons(path: Path) -> dict[str, Seasons]:
    """Return what was kept of each model, nothing where there is no file. Raises InvalidRequest for a file
    that holds anything else."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SEASON_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror}); name another file") from error
    try:
        given = _loaded(data)
        return {str(model): Seasons(_checked(means)) for model, means in given.items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path} holds no seasons ({error}); remove it, and they are learnt anew"
        ) from error


def write_seasons(path: Path, seasons: Mapping[str, Seasons]) -> None:
    """Replace the file in one step. Raises OSError."""
    write_file(path, json.dumps({model: each.means for model, each in seasons.items()}).encode())


def _loaded(data: bytes) -> dict[str, Any]:
    """Raises ValueError for what is too large or no JSON."""
    if len(data) > MAX_SEASON_BYTES:
        raise ValueError(f"it is larger than {MAX_SEASON_BYTES} bytes")
    given: dict[str, Any] = json.loads(data)
    return given


def _checked(means: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Raises ValueError, TypeError, LookupError or AttributeError for what `Seasons.means` does not have."""
    found: dict[str, dict[int, float]] = {}
    for kind, slots in KINDS.items():
        read = {int(slot): float(rate) for slot, rate in means[kind].items()}
        if any(not 0 <= slot < slots or not 0 <= rate < math.inf for slot, rate in read.items()):
            raise ValueError(f"a {kind} has {slots} slots, and rates of 0 or more")
        found[kind] = read
    return found
