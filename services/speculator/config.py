"""Configuration of the speculator service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shared.config.fields import field_of
from shared.worker.config import EngineServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorConfig(EngineServiceConfig):
    """`model` is the draft model; empty = the demo draft model shipped with Penstock."""

    of_draft: ClassVar[bool] = True

    drafts_for: tuple[str, ...] = field_of(
        (),
        help="models that it drafts for, by the names that clients ask for, with the tokenizer of the draft; "
        "empty = all",
        pattern=r"[\w.:@/-]{1,128}",
    )
    kv_memory_mb: int = field_of(
        64, help="memory of the draft model's KV pool, in MiB", minimum=1, maximum=1 << 24
    )
    max_sessions: int = field_of(
        256, help="draft sessions kept; the least recently used gives way", minimum=1, maximum=1 << 16
    )
    max_draft_tokens: int = field_of(16, help="longest draft per request", minimum=1, maximum=64)
