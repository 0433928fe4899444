"""Gather what workers say of the adapters over their models: all who say the same stand together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.messages import Heartbeat

SHOWN_DIGITS = 8
"""The digits of a digest that are shown; --json has all of them."""


@dataclass(frozen=True, slots=True, order=True)
class AdapterState:
    """`adapter` is MODEL:ADAPTER, as requests name it; `error` why it could not be loaded, or empty. No
    `tenants`: it is for everybody."""

    adapter: str
    digest: str
    rank: int
    error: str
    tenants: tuple[str, ...] = ()


def adapter_states(beats: Iterable[Heartbeat]) -> dict[AdapterState, list[str]]:
    """Return the states of adapters by name, each with who says so; workers of one model may differ."""
    having: dict[AdapterState, list[str]] = {}
    for beat in beats:
        for report in beat.worker.adapters:
            state = AdapterState(
                f"{beat.model}:{report.name}", report.digest, report.rank, report.error, report.tenants
            )
            having.setdefault(state, []).append(beat.instance)
    return dict(sorted(having.items()))
