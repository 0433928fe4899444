"""Where Prometheus finds every instance: what its HTTP service discovery reads at `/sd`."""

from __future__ import annotations

import json
from collections.abc import Iterable

from shared.messages import Heartbeat

SD_PATH = "/sd"
EVERY_ADDRESS = ("0.0.0.0", "[::]")  # noqa: S104 - compared with, never listened on


def scrape_targets(beats: Iterable[Heartbeat]) -> str:
    """All of whom `beats` are, those that are silent now too: a scrape that fails says so."""
    groups = [
        {
            "targets": [_target(beat)],
            "labels": {"role": beat.role, "instance": beat.instance, "host": beat.host},
        }
        for beat in sorted(beats, key=lambda beat: (beat.role, beat.instance))
        if beat.metrics
    ]
    return json.dumps(groups)


def _target(beat: Heartbeat) -> str:
    """The address that others reach: who listens on every address of its machine is found by its name."""
    host, _, port = beat.metrics.rpartition(":")
    return f"{beat.host}:{port}" if host in EVERY_ADDRESS else beat.metrics
