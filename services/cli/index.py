"""`penstock index DIR`: make or update the retriever's index of a folder, ahead of `penstock up`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from services.cli.exit_codes import EXIT_CANCELLED, EXIT_FAILED
from services.cli.stack_file import DEFAULT_STATE_DIR
from shared.errors import PenstockError
from shared.telemetry import logging


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock index",
        description="Index the .md and .txt files of a folder, so that `penstock up --corpus DIR` starts "
        "faster. A stack that runs already keeps the index it has until its retriever is restarted.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=DEFAULT_STATE_DIR,
        help="where the index is kept, as for penstock up",
    )
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")
    logging.configure("warning", "cli", "cli")
    try:
        return _index(str(args.folder.resolve()), args.state_dir.resolve())
    except PenstockError as error:
        print(f"penstock index: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_CANCELLED


def _index(corpus: str, state_dir: Path) -> int:
    print("loading the embedding model …", file=sys.stderr, flush=True)
    # The model library takes seconds to import: only for this command, and only now.
    from shared.retrieval.build import build_index  # noqa: PLC0415
    from shared.retrieval.embedder import Embedder  # noqa: PLC0415

    built = build_index(corpus, state_dir, Embedder.load(), _progress)
    for name, reason in built.skipped:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    files, passages = len(built.index.files), len(built.index)
    print(f"{files} files, {passages} passages ({built.embedded} new) in {built.folder}")
    return 0


def _progress(done: int, total: int) -> None:
    """One line that grows on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        print(f"\rembedding {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done == total or done * 10 // total > (done - 1) * 10 // total:
        print(f"embedding {done}/{total}", file=sys.stderr, flush=True)
