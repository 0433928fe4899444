"""The times of requests that nobody waits for: gaps of a gamma distribution, Poisson's among them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

MAX_VARIATION = 20.0
"""The greatest coefficient of variation of the gaps; at 1 they are those of a Poisson process, at 0 equal."""


def gamma_arrivals(rate: float, variation: float, random: Random) -> Iterator[float]:
    """Yield times since the load began, `rate` a second in the mean."""
    at_s = 0.0
    shape = 1.0 / variation**2 if variation else 0.0
    while True:
        at_s += random.gammavariate(shape, 1.0 / (rate * shape)) if shape else 1.0 / rate
        yield at_s


def seeded_arrivals(rate: float, variation: float, seed: int) -> Iterator[float]:
    """Yield the times of a load with this seed, which are the same again each time."""
    return gamma_arrivals(rate, variation, Random(f"{seed}/arrivals"))  # noqa: S311 - it has to be repeatable
