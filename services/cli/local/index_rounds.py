"""Index a corpus, and with `--watch` again whenever it changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from services.cli.local.index_progress import IndexProgressLine
from shared.errors import PenstockError
from shared.retrieval.documents.watch import LOOK_EVERY_S, CorpusWatch
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.index.build import Built, build_index


class IndexRounds:
    """Prints what comes of each. The model is loaded once."""

    def __init__(self, corpus: str, state_dir: Path, threads: int) -> None:
        self._corpus = corpus
        self._state_dir = state_dir
        self._embedder = Embedder.load(threads=threads)
        self._watch = CorpusWatch(corpus)
        self._skipped: tuple[tuple[str, str], ...] = ()

    def index(self) -> None:
        """Raises PenstockError (see build)."""
        built = self._build()
        if built.skipped != self._skipped:
            for name, reason in built.skipped:
                print(f"skipped {name}: {reason}", file=sys.stderr)
        self._skipped = built.skipped
        files, passages = len(built.index.table.files), len(built.index)
        print(f"{files} files, {passages} passages ({built.embedded} new) in {built.folder}", flush=True)

    def index_changes(self, pause: Callable[[float], None] = time.sleep) -> None:
        """Index what changes, for ever. A corpus that cannot be indexed as it is leaves the index as it
        was."""
        print(f"watching {self._corpus} …", file=sys.stderr, flush=True)
        while True:
            pause(LOOK_EVERY_S)
            if self._watch.changed():
                try:
                    self.index()
                except PenstockError as error:
                    print(f"penstock index: {error}; the index stays as it was", file=sys.stderr, flush=True)

    def _build(self) -> Built:
        progress = IndexProgressLine(sys.stderr, redraws=sys.stderr.isatty())
        try:
            print(f"reading {self._corpus} …", file=sys.stderr, flush=True)
            return build_index(
                self._corpus,
                self._state_dir,
                self._embedder,
                progress.show,
                waiting=_print_waiting,
                reading=progress.show_reading,
            )
        except KeyboardInterrupt:
            progress.end()
            if progress.embeds:
                said = "stopped; what is embedded so far is kept, and the same command goes on from there"
                print(said, file=sys.stderr, flush=True)
            elif progress.reads:
                print("stopped while it read: the same command reads anew", file=sys.stderr, flush=True)
            raise
        finally:
            progress.end()


def _print_waiting(holder: int) -> None:
    who = f"process {holder} indexes" if holder else "another process indexes"
    print(f"{who} this folder already: waiting until it has …", file=sys.stderr, flush=True)
