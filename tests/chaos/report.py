"""What a drill tells: a table, and claims that hold or do not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.cli.view.table import table
from tests.support.percentile import percentile


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the design, and the figure that decides it. `timed`: a slow machine may break it."""

    text: str
    figure: str
    holds: bool
    timed: bool


@dataclass(slots=True)
class DrillReport:
    """Filled as the drill goes on; each row is told on stderr at once, for who waits."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    details: list[tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = field(default_factory=list)
    """Tables behind the first: what it is made of."""
    claims: list[Claim] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append(tuple(str(cell) for cell in cells))
        print("  ".join(self.rows[-1]), file=sys.stderr, flush=True)

    def claim(self, text: str, figure: object, *, holds: bool, timed: bool = False) -> None:
        self.claims.append(Claim(text, str(figure), holds, timed))

    def broken(self, *, timed: bool = True) -> list[str]:
        """The claims that do not hold, those of time only where asked for."""
        claims = [claim for claim in self.claims if not claim.holds and (timed or not claim.timed)]
        return [f"{claim.text}: {claim.figure}" for claim in claims]

    def __str__(self) -> str:
        claims = [("holds" if claim.holds else "BROKEN", claim.text, claim.figure) for claim in self.claims]
        tables = [table(head, rows) for head, rows in ((self.head, self.rows), *self.details)]
        parts = [f"## {self.title}", *tables, table(("", "claim", "figure"), claims)]
        return "\n\n".join(parts)


def spread(values: Sequence[float], unit: str = "ms") -> str:
    """p50 / p99 / max."""
    if not values:
        return "-"
    return f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f} / {max(values):.1f} {unit}"
