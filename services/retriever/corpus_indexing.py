"""Corpora are brought up to date at the start, one after the other, and each is then followed on its own."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import structlog

from services.retriever.config import RetrieverConfig
from services.retriever.corpora import Corpora
from services.retriever.index_follower import POLL_S, IndexFollower
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import PenstockError, Unavailable
from shared.files.followed_file import FollowedFile
from shared.process.service import Service
from shared.retrieval.documents.corpus import is_other_kind
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.index.build import MODEL, build_index, index_folder
from shared.retrieval.index.manifest import pointer_file
from shared.ticks import until_tick

PROGRESS_EVERY_S = 2.0
MAX_TOLD_KINDS = 8
"""The most kinds of other files that a line names."""
READY_POLL_S = 0.02
LOCK_POLL_S = 0.25
"""The time between two tries of a folder that another process indexes: meanwhile other corpora have their
turn."""

log = structlog.get_logger()


class IndexingStopped(Exception):
    """This process is to end; what has been embedded is kept."""


class IndexAwaited(Exception):
    """Another process indexes the same folder."""


class CorpusIndexing:
    def __init__(self, service: Service[RetrieverConfig], embedder: Embedder, corpora: Corpora) -> None:
        self._service = service
        self._embedder = embedder
        self._corpora = corpora
        self._state_dir = Path(service.config.state_dir)
        self._turn = asyncio.Lock()
        self._untried = set(corpora)
        self._awaited: set[ServedCorpus] = set()
        self._told_s = SYSTEM_CLOCK.monotonic_s()

    def start(self) -> None:
        for corpus in self._corpora:
            self._service.supervisor.start_task(f"corpus-{corpus.named.name}", partial(self._serve, corpus))

    async def first_round(self, wait_s: float) -> None:
        """Index until all corpora have been tried; those that can be searched wait for the others `wait_s`.

        Raises Unavailable when there are some and none can be searched.
        """
        end = Deadline.after(wait_s)
        while self._untried and not (end.expired() and self._searched()):  # noqa: ASYNC110 - threads change it
            await asyncio.sleep(READY_POLL_S)
        troubles = [corpus.trouble for corpus in self._corpora]
        if troubles and not self._searched():
            raise Unavailable("; ".join(troubles))

    def _searched(self) -> bool:
        return any(corpus.generation for corpus in self._corpora)

    async def _serve(self, corpus: ServedCorpus) -> None:
        """Index what changes, for ever."""
        folder = index_folder(self._state_dir, corpus.named.path)
        follower = IndexFollower(folder, MODEL, corpus)
        while corpus in self._untried:
            async with self._turn:
                tried = await asyncio.to_thread(self._bring_up_to_date, corpus, follower)
            if tried:
                self._untried.discard(corpus)
                self._service.changed()
            else:
                await asyncio.sleep(LOCK_POLL_S)
        pointer, seen = FollowedFile(pointer_file(folder)), None
        while True:
            await until_tick(POLL_S)
            signature = (await pointer.signature(),)
            if (signature != seen or follower.troubled) and await asyncio.to_thread(follower.follow):
                self._service.changed()
            seen = signature

    def _bring_up_to_date(self, corpus: ServedCorpus, follower: IndexFollower) -> bool:
        """Index what has changed, in a thread; False where another process does it, so that it is tried
        again. The index there was serves until then, or for want of a newer one."""
        try:
            self._index(corpus, follower)
        except IndexAwaited:
            _serve_old(corpus, follower)
            return False
        except IndexingStopped:
            log.info("indexing_stopped", corpus=corpus.named.name)
        except (PenstockError, OSError) as error:
            corpus.report_trouble(str(error))
            log.warning("corpus_not_indexed", corpus=corpus.named.name, error=str(error))
        except Exception as error:  # of whatever reads documents: the other corpora are served all the same
            corpus.report_trouble(f"it could not be indexed ({type(error).__name__}); the log has the cause")
            log.exception("corpus_not_indexed", corpus=corpus.named.name)
        trouble = corpus.trouble
        if _serve_old(corpus, follower) and trouble:
            corpus.report_trouble(trouble)
        return True

    def _index(self, corpus: ServedCorpus, follower: IndexFollower) -> None:
        name = corpus.named.name

        def get_on() -> None:
            if self._service.stopping.is_set():
                raise IndexingStopped
            self._service.loaded_steps += 1

        def progress(done: int, total: int) -> None:
            get_on()
            if SYSTEM_CLOCK.monotonic_s() - self._told_s >= PROGRESS_EVERY_S:
                self._told_s = SYSTEM_CLOCK.monotonic_s()
                log.info("indexing", corpus=name, done_passages=done, total_passages=total)
                _serve_old(corpus, follower)

        def waiting(holder: int) -> None:
            if corpus not in self._awaited:
                self._awaited.add(corpus)
                log.warning(
                    "index_awaited",
                    corpus=name,
                    holder_pid=holder,
                    help="another process indexes the same folder",
                )
            raise IndexAwaited

        built = build_index(
            corpus.named.path,
            self._state_dir,
            self._embedder,
            progress,
            waiting=waiting,
            reading=lambda _: get_on(),
        )
        for document, reason in built.skipped:
            if not is_other_kind(document):
                log.warning("document_skipped", corpus=name, document=document, reason=reason)
        if others := [document for document, _ in built.skipped if is_other_kind(document)]:
            log.info("other_files_left_out", corpus=name, kinds=", ".join(others[:MAX_TOLD_KINDS]))
        log.info(
            "indexed",
            corpus=name,
            passages=len(built.index),
            embedded=built.embedded,
            files=len(built.index.table.files),
            nearest=built.index.nearest.description,
        )
        corpus.replace_index(built.index, built.generation, built.digest)


def _serve_old(corpus: ServedCorpus, follower: IndexFollower) -> bool:
    """Return whether an index that was there already has come into service now."""
    return not corpus.generation and follower.follow() and bool(corpus.generation)
