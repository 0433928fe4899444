"""Heartbeats for tests: fields of any report, said flat."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from shared.messages import (
    DecodeReport,
    GatewayReport,
    Heartbeat,
    RetrieverReport,
    TokenizerReport,
    WorkerReport,
)

REPORTS = {
    "gateway": GatewayReport,
    "tokenizer": TokenizerReport,
    "retriever": RetrieverReport,
    "worker": WorkerReport,
    "decode": DecodeReport,
}


def make_heartbeat(role: str, instance: str, **fields: object) -> Heartbeat:
    """Return the heartbeat of an instance that is ready and idle, with `fields` of it or of its reports."""
    return heartbeat_with(Heartbeat(role, instance, 1, "ready", host="h", pid=1), **fields)


def heartbeat_with(beat: Heartbeat, **fields: object) -> Heartbeat:
    """Return `beat` with `fields` of it or of its reports. Raises TypeError for a field that is in none."""
    for name, report in REPORTS.items():
        own = {
            field.name: fields.pop(field.name) for field in dataclasses.fields(report) if field.name in fields
        }
        beat = replace(beat, **{name: replace(getattr(beat, name), **own)})
    return replace(beat, **fields)  # type: ignore[arg-type]  # fields of Heartbeat by name
