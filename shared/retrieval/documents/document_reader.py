"""Have documents read in a process that can be stopped (`document_jobs`)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from shared.errors import Unavailable
from shared.process import job_runner
from shared.process.limited_jobs import JobEnd, LimitedJobs
from shared.retrieval.documents.document import START, FilePart, FilePlace, Unreadable
from shared.retrieval.documents.document_jobs import (
    DOCUMENT_LIMITS,
    MAX_PDF_S,
    MAX_READ_S,
    PDF_SUFFIX,
    packed_job,
    unpacked_part,
)

DOCUMENT_JOBS = "shared.retrieval.documents.document_jobs"
LOOK_S = 0.1
"""The time between two calls of who waits: it may be told to end."""


class DocumentReader:
    """The process is there from the first file on; `close` ends it."""

    def __init__(self, module: str = DOCUMENT_JOBS) -> None:
        self._jobs = LimitedJobs(module)

    def read(self, path: Path, name: str, look: Callable[[], None], start: FilePlace = START) -> FilePart:
        """Read and cut one file, or a part of one whose lines are documents; meanwhile `look` is called again
        and again, and what it raises ends that.

        Raises Unreadable with the reason, whatever the file made of its reader: it is that file's alone.
        """
        try:
            ending, stop = self._jobs.submit(packed_job(path, name, start))
            end = _awaited(ending, stop, look)
        except Unavailable as error:
            raise Unreadable(f"it was not read: {error}") from error
        match end.end:
            case job_runner.DONE:
                return unpacked_part(name, end.result)
            case job_runner.TOO_LONG:
                most_s = MAX_PDF_S if path.suffix.lower() == PDF_SUFFIX else MAX_READ_S
                raise Unreadable(f"it takes longer than {most_s:.0f} s to read", is_lasting=True)
            case job_runner.TOO_LATE:
                raise Unreadable("this machine was too busy to read it; it is tried again")
            case job_runner.TOO_MUCH:
                reason = f"it takes more than {DOCUMENT_LIMITS.memory_bytes >> 20} MiB to read"
                raise Unreadable(reason, is_lasting=True)
            case _:
                raise Unreadable(f"it was not read: {end.result.decode(errors='replace')}")

    def close(self) -> None:
        self._jobs.close()


def _awaited(ending: Future[JobEnd], stop: Callable[[], None], look: Callable[[], None]) -> JobEnd:
    """Wait for the end of a job, which its own limits bound."""
    try:
        while True:
            try:
                return ending.result(LOOK_S)
            except TimeoutError:
                look()
    except BaseException:
        stop()
        raise
