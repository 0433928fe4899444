"""Record a worker's part of a request's time, for its timeline and for the metrics at once."""

from __future__ import annotations

from shared.messages import Mark
from shared.telemetry import metrics


def hop_mark(hop: str, phase: str, seconds: float) -> Mark:
    """Counts it; a clock that went backwards counts as nothing."""
    duration_us = max(0, round(seconds * 1e6))
    metrics.HOP_SECONDS.labels(hop, phase).observe(duration_us / 1e6)
    return Mark(f"{hop}.{phase}", duration_us)
