"""Read the metrics page of an instance: sums over labels, by the name of a sample."""

from __future__ import annotations

import asyncio
import http.client
import math
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from shared.errors import Unavailable

MAX_METRICS_BYTES = 4 << 20
"""The largest page of metrics that is read."""
PAGE_TIMEOUT_S = 5.0
PHASE_SUM = "penstock_hop_seconds_sum"
Samples = Mapping[str, float]


async def read_metrics(address: str) -> Samples:
    """Read the page at HOST:PORT. Raises Unavailable, which says why there is none."""
    text = await read_page(address)
    try:
        return parsed_metrics(text)
    except ValueError as error:
        raise _unreadable(address, error) from error


async def read_page(address: str) -> str:
    """Return the text of the page at HOST:PORT. Raises Unavailable, which says why there is none."""
    try:
        return await asyncio.to_thread(_fetched, address)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unreadable(address, error) from error


def parsed_metrics(text: str) -> Samples:
    """Return the sum of each sample over its labels, phases of a request by `NAME/PHASE` as well.

    Raises ValueError for text that is none of Prometheus'.
    """
    found: dict[str, float] = {}
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError as error:  # often without a word
        raise ValueError(f"it is none of Prometheus: {error}") from error
    for sample in samples:
        value = float(sample.value)
        if not math.isfinite(value):
            continue
        found[sample.name] = found.get(sample.name, 0.0) + value
        if sample.name == PHASE_SUM:
            name = f"{PHASE_SUM}/{sample.labels.get('phase', '')}"
            found[name] = found.get(name, 0.0) + value
    return found


def _unreadable(address: str, error: Exception) -> Unavailable:
    return Unavailable(f"the metrics at {address} cannot be read ({error}): ask again")


def _fetched(address: str) -> str:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PAGE_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        data = response.read(MAX_METRICS_BYTES + 1)
        if response.status != http.client.OK:
            raise ValueError(f"it answers {response.status}")
        if len(data) > MAX_METRICS_BYTES:
            raise ValueError(f"it is larger than {MAX_METRICS_BYTES} bytes")
        return data.decode()
    finally:
        connection.close()
