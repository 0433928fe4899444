"""Reading counters of this process."""

from __future__ import annotations

from prometheus_client import REGISTRY


def value(name: str, **labels: str) -> float:
    """The current value of a sample, 0 when it has never been touched."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
