"""Add up what gateways say of usage, and take the difference of two times that they said it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shared.messages import UsageReport, UsageRow

Key = tuple[str, str]
"""A tenant and a model."""
Sums = dict[Key, UsageRow]


@dataclass(frozen=True, slots=True)
class GatewayUsage:
    """Keep what one gateway has said."""

    instance: str
    report: UsageReport


def total(readings: Sequence[GatewayUsage]) -> Sums:
    """Return the sums over all gateways."""
    sums: Sums = {}
    for reading in readings:
        for row in reading.report.rows:
            key = row.tenant, row.model
            sums[key] = added(sums[key], row) if key in sums else row
    return dict(sorted(sums.items()))


def used_since(before: Sequence[GatewayUsage], now: Sequence[GatewayUsage]) -> Sums:
    """Return what was used between two readings: all of it at a gateway that has started since."""
    earlier = {(each.instance, each.report.incarnation): each.report for each in before}
    changes = []
    for reading in now:
        was = earlier.get((reading.instance, reading.report.incarnation))
        known: Mapping[Key, UsageRow] = {} if was is None else {(r.tenant, r.model): r for r in was.rows}
        rows = tuple(
            added(row, known[key], -1) if (key := (row.tenant, row.model)) in known else row
            for row in reading.report.rows
        )
        changes.append(GatewayUsage(reading.instance, replace(reading.report, rows=rows)))
    return {key: row for key, row in total(changes).items() if row.requests}


def added(row: UsageRow, other: UsageRow, times: int = 1) -> UsageRow:
    """Return `row` with `times` the sums of `other` added."""
    more: dict[str, Any] = {
        name: value + times * getattr(other, name)
        for name, value in asdict(row).items()
        if isinstance(value, int)
    }
    return replace(row, **more)
