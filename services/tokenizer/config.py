"""Configuration of the tokenizer service."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config.fields import ServiceConfig, field_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig(ServiceConfig):
    max_text_bytes: int = field_of(
        4 << 20, help="longest prompt text in bytes of UTF-8", minimum=1, maximum=64 << 20
    )
    workers: int = field_of(2, help="long texts tokenized at the same time", minimum=1, maximum=256)
    max_queued: int = field_of(
        256, help="long texts that may wait; more are refused as overloaded", minimum=1, maximum=1 << 16
    )
