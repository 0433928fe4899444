"""The commands of `penstock router`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from services.cli.router.calibrate import add_calibrate_parser, calibrate
from services.cli.router.train import add_train_parser, train
from shared.telemetry import logging


def build_router_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock router",
        description="Look after what chooses among several models.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_train_parser(commands)
    add_calibrate_parser(commands)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_router_parser().parse_args(argv)
    logging.configure("warning", "cli", "cli")
    return {"train": train, "calibrate": calibrate}[args.command](args)
