"""`penstock index DIR`: make or update the retriever's index of a folder, ahead of `penstock up`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from services.cli.arguments import natural
from services.cli.exit_codes import EXIT_FAILED
from services.cli.stack_file import DEFAULT_STATE_DIR
from shared.errors import PenstockError
from shared.process.cores import usable_cores
from shared.process.quiet_end import interrupts_end_at_once
from shared.retrieval.documents.corpus import READ_SUFFIXES, is_there
from shared.telemetry import logging

MAX_THREADS = 256


def build_index_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock index",
        usage="%(prog)s [-h] [--state-dir DIR] [--watch] [--threads N] DIR",
        description="Index documents (" + READ_SUFFIXES + "), so that `penstock up --corpus DIR` starts "
        "faster. A stack that runs already goes on to the new index by itself. What was interrupted goes on "
        "where it was.",
    )
    parser.add_argument(
        "corpus",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="a folder with its subfolders; or one file, or a pattern in quotes: 'FOLDER/*.md'",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        default=DEFAULT_STATE_DIR,
        help="where the index is kept, as for penstock up",
    )
    parser.add_argument(
        "--watch", action="store_true", help="stay, and index again what changes, until Ctrl-C"
    )
    parser.add_argument(
        "--threads", type=natural, metavar="N", help="passages are embedded on so many cores (default: all)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    parser = build_index_parser()
    args = parser.parse_args(argv)
    if len(args.corpus) > 1:
        parser.error(
            f"{len(args.corpus)} names are no corpus: name a folder or one file; what a shell has made of a "
            "pattern is one corpus in quotes, as in 'FOLDER/*.md'"
        )
    corpus: Path = args.corpus[0]
    if args.threads is not None and not 1 <= args.threads <= MAX_THREADS:
        parser.error(f"--threads is {args.threads}; take 1 to {MAX_THREADS}")
    if not is_there(str(corpus)):
        parser.error(f"{corpus} does not exist; name a folder or a file")
    logging.configure("warning", "cli", "cli")
    try:
        print("loading the embedding model …", file=sys.stderr, flush=True)
        # The model library takes seconds to import: only for this command, and only now.
        with interrupts_end_at_once():
            from services.cli.local.index_rounds import IndexRounds  # noqa: PLC0415

        rounds = IndexRounds(str(corpus.resolve()), args.state_dir.resolve(), args.threads or usable_cores())
        rounds.index()
        if args.watch:
            rounds.index_changes()
    except PenstockError as error:
        print(f"penstock index: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0
