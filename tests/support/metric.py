"""Reading counters of this process."""

from __future__ import annotations

from prometheus_client import REGISTRY


def value(name: str, **labels: str) -> float:
    """The current value of a sample, 0 when it has never been touched."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def total(name: str, **labels: str) -> float:
    """The sum of a sample over all its labels but these."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
