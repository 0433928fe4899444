"""`penstock down`: stop the running stack, from whatever directory."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.stack_file import NoStack, add_state_dir, chosen_state_dir
from shared.files.stack_register import launcher_of

DEFAULT_TIMEOUT_S = 60.0
"""Longer than a stack takes to finish what it has, unless it was configured otherwise."""
POLL_S = 0.05


def build_down_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock down",
        description="Stop your running stack: it takes nothing new, finishes what it has, and ends. Exit "
        "code 1 when none runs or it is another user's, 3 when it has not ended in time; it goes on stopping "
        "then.",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait for its end (default: %(default)g)",
    )
    add_state_dir(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_down_parser().parse_args(argv)
    try:
        state_dir = chosen_state_dir(args, "--state-dir DIR")
    except NoStack as error:
        print(f"penstock down: {error}", file=sys.stderr)
        return EXIT_FAILED
    pid = launcher_of(state_dir)
    if pid is None:
        print(f"penstock down: no stack runs from {state_dir}", file=sys.stderr)
        return EXIT_FAILED
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        print(f"penstock down: the stack of {state_dir} is another user's", file=sys.stderr)
        return EXIT_FAILED
    except ProcessLookupError:
        return 0  # it has just ended by itself
    began_s = time.monotonic()
    while launcher_of(state_dir) == pid:
        if time.monotonic() - began_s >= args.timeout:
            print(f"the stack of {state_dir} has not ended after {args.timeout:g} s and goes on stopping")
            return EXIT_EXPIRED
        time.sleep(POLL_S)
    print(f"the stack of {state_dir} has ended after {time.monotonic() - began_s:.1f} s")
    return 0
