"""Configuration of the prefill service."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config.fields import field_of
from shared.kv.transports import AUTO, TRANSPORT_CHOICES
from shared.worker.config import EngineServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig(EngineServiceConfig):
    """`max_sequences` counts prompts being computed and prompts whose KV is still on its way."""

    max_queued: int = field_of(256, help="prompts that may wait", minimum=1, maximum=1 << 16)
    max_queued_tokens: int = field_of(
        32768, help="tokens to compute that may wait; one prompt may always", minimum=1
    )
    prefix_fetches: int = field_of(
        4,
        help="prefixes fetched at a time from other prefill workers that have them, where that is faster "
        "than to compute them; 0 = none",
        minimum=0,
        maximum=64,
    )
    kv_transport: str = field_of(
        AUTO,
        help="how these come in; auto = shared memory where the other one is on this host, else nats",
        choices=TRANSPORT_CHOICES,
    )
