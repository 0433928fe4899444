"""Metrics of KV transfers beside those that all services share."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from shared.telemetry.metrics import HOP_BUCKETS, KV_TRANSFER_BYTES, KV_TRANSFER_SECONDS

TRANSFER_BYTES = KV_TRANSFER_BYTES
"""Verified bytes, at the receiver."""
TRANSFER_SECONDS = KV_TRANSFER_SECONDS
TRANSFERS = Counter(
    "penstock_kv_transfers_total", "KV transfers by how they ended.", ["transport", "outcome"]
)
EXPOSED_SECONDS = Histogram(
    "penstock_kv_transfer_exposed_seconds",
    "Part of a KV transfer that its request waited for: token sampled to KV verified.",
    ["transport"],
    buckets=HOP_BUCKETS,
)
CELLS_AGAIN = Counter("penstock_kv_transfer_cells_again_total", "Cells asked for or sent once more.", ["why"])
CHECKSUM_FAILURES = Counter(
    "penstock_kv_transfer_checksum_failures_total", "KV bodies that failed their checksum."
)
CHUNKS_DISCARDED = Counter(
    "penstock_kv_transfer_chunks_discarded_total", "Chunks that did not land in the pool.", ["why"]
)
