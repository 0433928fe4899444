"""`penstock config`: the launcher knows what it would tell its services."""

from __future__ import annotations

from collections.abc import Sequence

from services.cli.launcher_process import become


def main(argv: Sequence[str]) -> int:
    become("services.launcher.config_report", argv)
