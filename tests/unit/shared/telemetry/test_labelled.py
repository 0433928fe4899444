"""A series of a metric is found once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from shared.telemetry.labelled import labelled


def test_a_series_is_the_same_that_the_metric_itself_finds() -> None:
    registry = CollectorRegistry()
    counter = Counter("found", "Of a test.", ["role", "unit"], registry=registry)
    labelled(counter, "decode", "core").inc()
    counter.labels(unit="core", role="decode").inc(2)
    assert registry.get_sample_value("found_total", {"role": "decode", "unit": "core"}) == 3
    assert labelled(counter, "decode", "core") is labelled(counter, "decode", "core")


def test_metrics_with_equal_labels_are_told_apart() -> None:
    registry = CollectorRegistry()
    first, second = (Histogram(name, "Of a test.", ["hop"], registry=registry) for name in ("one", "two"))
    labelled(first, "bus").observe(1.0)
    labelled(second, "bus").observe(4.0)
    sums = [registry.get_sample_value(f"{name}_sum", {"hop": "bus"}) for name in ("one", "two")]
    assert sums == [1.0, 4.0]


def test_as_many_values_as_labels_are_wanted() -> None:
    counter = Counter("counted", "Of a test.", ["role", "unit"], registry=CollectorRegistry())
    with pytest.raises(ValueError, match="label count"):
        labelled(counter, "decode")
