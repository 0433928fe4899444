"""`penstock up`: becomes the launcher."""

from __future__ import annotations

from collections.abc import Sequence

from services.cli.launcher_process import become


def main(argv: Sequence[str]) -> int:
    become("services.launcher", argv)
