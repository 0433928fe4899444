"""Keep what a message to another region and its answer took, and say how far away that region is."""

from __future__ import annotations

from collections import deque

UNMEASURED_S = 0.1
"""The round trip of a region that nobody has measured yet: about that between two continents, so that a near
region is left for it only where it is needed."""
SAMPLES = 5
"""The latest round trips of a region that count. The least of them is the distance: what a queue or a lost
packet adds is none."""
MAX_REGIONS = 64
"""The most regions that are measured; those beyond are as far away as any that nobody has measured."""


class RoundTrips:
    def __init__(self) -> None:
        self._samples: dict[str, deque[float]] = {}

    def record(self, region: str, seconds: float) -> None:
        """An instance of the region has answered after so long."""
        if region not in self._samples:
            if len(self._samples) >= MAX_REGIONS:
                return
            self._samples[region] = deque(maxlen=SAMPLES)
        self._samples[region].append(max(0.0, seconds))

    def seconds(self, region: str) -> float:
        """Return how far away the region is, there and back."""
        samples = self._samples.get(region)
        return min(samples) if samples else UNMEASURED_S

    def is_measured(self, region: str) -> bool:
        return region in self._samples

    def forget(self, region: str) -> None:
        """Nobody of the region is there any more."""
        self._samples.pop(region, None)

    @property
    def measured(self) -> tuple[str, ...]:
        """Return the regions of which there is a measurement."""
        return tuple(self._samples)
