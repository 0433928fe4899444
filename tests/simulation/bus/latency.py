"""How long bytes are on their way."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Latency:
    """Each write takes between `least_s` and `most_s`; those of one connection stay in order.

    One in `1 / late_share` writes takes `late_s` more, as one whose packet was lost does.
    """

    least_s: float = 0.0
    most_s: float = 0.0
    late_share: float = 0.0
    late_s: float = 0.2

    def draw_s(self, random: Random) -> float:
        """Return the time of one write."""
        if self.most_s <= 0:
            return 0.0
        late_s = self.late_s if self.late_share and random.random() < self.late_share else 0.0
        return random.uniform(self.least_s, self.most_s) + late_s
