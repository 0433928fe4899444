"""Say what it costs to go from one region to another: a hop of a message, a transfer of KV."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.regions.round_trips import RoundTrips
from shared.kv.limits import FIRST_WINDOW_BYTES, WINDOW_BYTES

MOST_LINK_BYTES_PER_S = 350e6
"""The fastest that KV goes over the bus, as measured between two processes of one machine."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways as they are known at a gateway in `own`; `trips` are its round trips to other regions."""

    own: str
    trips: RoundTrips

    def way_s(self, start: str, end: str) -> float:
        """Return the time from one region to another. Between two others it is that of the way through
        here: the direct one, which nobody measures, is no longer in most nets."""
        if start == end:
            return 0.0
        return sum(self.trips.seconds(region) / 2 for region in (start, end) if region != self.own)

    def kv_s(self, start: str, end: str, kv_bytes: int) -> float:
        """Return the time in which KV of so many bytes is there: 0 in one region, where it is a part of what
        workers measure.

        A transfer waits one round trip for its grant and one for its first window to be acknowledged; then
        it has one window of credit a round trip.
        """
        if start == end:
            return 0.0
        round_trip_s = 2 * self.way_s(start, end)
        window_s = max(round_trip_s, WINDOW_BYTES / MOST_LINK_BYTES_PER_S)
        return 2 * round_trip_s + window_s * max(0, kv_bytes - FIRST_WINDOW_BYTES) / WINDOW_BYTES
