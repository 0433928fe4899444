"""End jobs of a decode worker: give back all that is held for them, and keep the streams that may go on."""

from __future__ import annotations

from collections.abc import Callable

from services.decode.book import DecodeBook
from services.decode.drafting import Drafting
from services.decode.driver import DecodeDriver
from services.decode.job import DecodeJob
from services.decode.parked_streams import PARKED_FOR, ParkedStream, ParkedStreams
from shared.worker.job import JobPhase


class JobEnds:
    """`ended` hears of each end: there is room now, and somebody may wait for it."""

    def __init__(
        self,
        book: DecodeBook,
        driver: DecodeDriver,
        drafting: Drafting,
        parked: ParkedStreams,
        ended: Callable[[], None],
    ) -> None:
        self._book = book
        self._driver = driver
        self._drafting = drafting
        self._parked = parked
        self._ended = ended

    def end(self, job: DecodeJob) -> None:
        """Nothing can write into the job's blocks any more: give everything back."""
        self._drafting.book.close_draft(job.key)
        self._book.remove(job.key)
        self._driver.release_later(job.key)
        self._ended()

    def end_finished(self, job: DecodeJob) -> None:
        """Its last token is drawn; its gateway says when the client has it."""
        if job.resumable:
            self.park(job, finished=True)
        self.end(job)

    def park_interrupted(self, job: DecodeJob, reason: str) -> None:
        """Its work ends for a `reason` before its client has all of it: another gateway may go on with it."""
        if job.resumable and reason in PARKED_FOR and job.phase is not JobPhase.STOPPING:
            self.park(job, finished=False)

    def park(self, job: DecodeJob, *, finished: bool) -> None:
        """Keep its stream for whoever takes it over."""
        self._parked.keep(job.request_id, ParkedStream.of(job, finished=finished))
