"""`penstock rm`: remove a model that is kept, unless a running stack serves it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from services.cli.exit_codes import EXIT_FAILED
from services.cli.local.kept_rows import served_from, size_words
from services.cli.view.terminal_text import text_sink
from shared.errors import InvalidRequest, PenstockError
from shared.files.model_store import check_anything_kept, forget_model


def build_rm_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock rm",
        description="Remove a model that is kept, and what a pull of it has left. Asks first; without a "
        "terminal it needs --yes. Refuses while a running stack of yours serves it.",
    )
    parser.add_argument("name", metavar="NAME", help="which")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_rm_parser().parse_args(argv)
    try:
        check_anything_kept(args.name)
        _check_unserved(args.name)
        if not args.yes and not _agreed(args.name):
            print(f"penstock rm: {args.name} stays; pass --yes to remove it unasked", file=sys.stderr)
            return EXIT_FAILED
        freed_bytes = forget_model(args.name)
    except PenstockError as error:
        print(f"penstock rm: {error.message}", file=text_sink(sys.stderr))
        return EXIT_FAILED
    except OSError as error:
        print(f"penstock rm: {error.filename}: {error.strerror or error}", file=text_sink(sys.stderr))
        return EXIT_FAILED
    print(f"{args.name} is removed: {size_words(freed_bytes)}")
    return 0


def _check_unserved(name: str) -> None:
    try:
        serving = served_from(name)
    except InvalidRequest:  # its entry is damaged, so that no stack can have found it
        return
    if serving:
        raise InvalidRequest(f"{name} is served by the stack of {serving}; `penstock down` first")


def _agreed(name: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"Remove {name} from this machine? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
