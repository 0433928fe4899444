"""Tell Prometheus where every instance is: its HTTP service discovery reads this at `/sd`."""

from __future__ import annotations

import json
from collections.abc import Iterable

from shared.messages import Heartbeat

SD_PATH = "/sd"


def scrape_targets(beats: Iterable[Heartbeat]) -> str:
    """Return a target for each of `beats`, silent instances included: a scrape that fails says so."""
    groups = [
        {
            "targets": [beat.metrics],
            "labels": {"role": beat.role, "instance": beat.instance, "host": beat.host},
        }
        for beat in sorted(beats, key=lambda beat: (beat.role, beat.instance))
        if beat.metrics
    ]
    return json.dumps(groups)
