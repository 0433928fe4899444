"""`penstock logs`: what the services of a stack have said, and what they say."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services.cli.arguments import natural
from services.cli.exit_codes import EXIT_FAILED
from services.cli.stack_file import STACK_NAME, NoStack, add_state_dir, chosen_state_dir, stack_instances
from services.cli.view.terminal_text import escaped_controls
from shared.files.log_reader import LogReader
from shared.files.rotated_log import LOG_NAME, MAX_LOG_FILE_BYTES
from shared.files.stack_register import launcher_of
from shared.telemetry.log_text import LinePrefixes, log_as_text, log_object

POLL_S = 0.2
"""The time between two looks for new lines."""
LEVELS = ("debug", "info", "warning", "error")
Show = Callable[[bytes, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """The lines that are wanted: of these names (all where there are none) and this level."""

    names: frozenset[str]
    level: str

    def takes(self, event: dict[str, Any]) -> bool:
        is_wanted = not self.names or event["instance"] in self.names or event["role"] in self.names
        return is_wanted and _severity(event["level"]) >= _severity(self.level)


def build_logs_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock logs",
        description="Show what the services of your stack have said, oldest first, also when it has ended: "
        "text on a terminal, else one JSON object per line. At least the last "
        f"{MAX_LOG_FILE_BYTES >> 20} MiB are kept. Exit code 1 when there is no log, or no such instance.",
    )
    parser.add_argument(
        "instances",
        nargs="*",
        metavar="INSTANCE",
        help="those of these alone: like decode-0, or decode for all of that role; nats, and penstock itself",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what comes, until the stack ends or Ctrl-C"
    )
    parser.add_argument("--lines", type=natural, metavar="N", help="only the last N (default: all)")
    parser.add_argument(
        "--level", choices=LEVELS, default="debug", help="those of this level and above (default: all)"
    )
    add_state_dir(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_logs_parser().parse_args(argv)
    try:
        state_dir = chosen_state_dir(args, "--state-dir DIR")
        _check_names(args.instances, state_dir)
        reader = _opened_log(state_dir)
    except (NoStack, OSError) as error:
        print(f"penstock logs: {error}", file=sys.stderr)
        return EXIT_FAILED
    wanted = LogFilter(frozenset(args.instances), args.level)
    show = _text_shown() if sys.stdout.isatty() else _show_object
    with closing(reader):
        for line, event in _last(_events(reader, wanted), args.lines):
            show(line, event)
        if args.follow:
            _follow(reader, wanted, show, state_dir)
    return 0


def _opened_log(state_dir: Path) -> LogReader:
    """Raises NoStack where there is none."""
    reader = LogReader(state_dir)
    if not reader.is_there:
        raise NoStack(f"there is no log in {state_dir}: no stack has run from there")
    return reader


def _check_names(names: Sequence[str], state_dir: Path) -> None:
    """Raises NoStack for a name that nobody has or had."""
    known: set[str] = set()
    if names and (state_dir / STACK_NAME).exists():
        known = {*stack_instances(state_dir, "--state-dir DIR")}
    if set(names) - known:
        with closing(_opened_log(state_dir)) as reader:
            known |= {event["instance"] for line in reader.lines() if (event := log_object(line))}
    roles = {name.rpartition("-")[0] or name for name in known}
    for name in names:
        if name not in known | roles:
            raise NoStack(
                f"the log of {state_dir} has nothing of {name!r}; there is {', '.join(sorted(known))}"
            )


def _events(reader: LogReader, wanted: LogFilter) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the wanted lines that have come since, with the object that each is."""
    damaged = 0
    for line in reader.lines():
        event = log_object(line)
        damaged += event is None
        if event is not None and wanted.takes(event):
            yield line, event
    if damaged:  # its writer was killed within a line
        print(f"penstock logs: {damaged} lines of the log are damaged and left out", file=sys.stderr)


def _last(
    events: Iterator[tuple[bytes, dict[str, Any]]], number: int | None
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    return events if number is None else iter(deque(events, maxlen=number))


def _follow(reader: LogReader, wanted: LogFilter, show: Show, state_dir: Path) -> None:
    told = False
    while True:
        runs = launcher_of(state_dir) is not None  # looked at first: its last words are read then
        for line, event in _events(reader, wanted):
            show(line, event)
        sys.stdout.flush()
        if reader.has_missed and not told:
            told = True
            print(
                f"penstock logs: {LOG_NAME} was full more than once meanwhile: lines may be missing here",
                file=sys.stderr,
            )
        if not runs:
            return
        time.sleep(POLL_S)


def _show_object(line: bytes, _event: dict[str, Any]) -> None:
    sys.stdout.buffer.write(line + b"\n")


def _text_shown() -> Show:
    """Return what shows lines as `penstock up` does, on a terminal that obeys nothing in them; a day that is
    not today stands before its lines."""
    prefixes = LinePrefixes(colour=not os.environ.get("NO_COLOR"))
    day = datetime.now(UTC).date().isoformat()

    def show(_line: bytes, event: dict[str, Any]) -> None:
        nonlocal day
        if (said_on := escaped_controls(event["ts"][:10])) != day:
            day = said_on
            sys.stdout.buffer.write(f"{day}\n".encode(errors="backslashreplace"))
        for line in log_as_text(event).split("\n"):
            text = escaped_controls(line).encode(errors="backslashreplace")
            sys.stdout.buffer.write(prefixes.prefixed(escaped_controls(event["instance"]), text))

    return show


def _severity(level: str) -> int:
    """Return how severe it is; what is none of ours is above all."""
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)
