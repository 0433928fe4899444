"""Configuration of the prefill service."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config.fields import field_of
from shared.worker.config import EngineServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig(EngineServiceConfig):
    """`max_sequences` counts prompts being computed and prompts whose KV is still on its way."""

    max_queued: int = field_of(256, help="prompts that may wait", minimum=1, maximum=1 << 16)
    max_queued_tokens: int = field_of(
        32768, help="tokens to compute that may wait; one prompt may always", minimum=1
    )
