"""A plain text table."""

from __future__ import annotations

from collections.abc import Sequence

CUT = "…"
"""Stands at the end of a line that did not fit."""
NOTHING = ("", "-")
"""Cells that say nothing."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces between them."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)


def said_columns(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the table without the columns in which no row says anything."""
    said = [column for column in range(len(head)) if any(row[column] not in NOTHING for row in rows)]
    return tuple(head[column] for column in said), [tuple(row[column] for column in said) for row in rows]


def cut_to(line: str, width: int) -> str:
    """Return the line, with a mark at its end where it is longer than `width`, which is 1 at least."""
    return line if len(line) <= width else line[: width - 1] + CUT
