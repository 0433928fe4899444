"""Choose the streams that leave a worker which goes on: it is short of KV blocks, or others may be faster.

Whether another worker is notably better off its gateway says. One stream at a time leaves, and who has come
from another worker stays for a while, so that none goes to and fro.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.decode.book import DecodeBook
from services.decode.job import DecodeJob
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import LONG_STEPS, SHORT_OF_BLOCKS
from shared.worker.job import JobPhase

STAYS_S = 10.0
"""A stream that was handed over is not handed over again for so long, unless its worker drains."""
REST_S = 0.5
"""The least time between two streams that leave: gateways hear meanwhile what the first one has changed."""
MAX_REST_S = {SHORT_OF_BLOCKS: 2.0, LONG_STEPS: 16.0}
"""The time between two tries doubles up to this while nobody takes a stream."""
FEWEST_TOKENS_LEFT = 64
"""A stream that may get fewer tokens than these ends before it is worth moving."""
MANY_STREAMS = 4
"""A worker with fewer streams does not ask whether others are faster."""


@dataclass(slots=True)
class _Rest:
    """The wait for the next try: until when, and how long the next one is."""

    until_s: float = 0.0
    next_s: float = REST_S


class Rebalancing:
    """`is_leaving`: whether the hand-over of a job, by its key, is under way."""

    def __init__(
        self, book: DecodeBook, is_leaving: Callable[[str], bool], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._book = book
        self._is_leaving = is_leaving
        self._clock = clock
        self._moving: tuple[DecodeJob, str] | None = None
        self._rests = {SHORT_OF_BLOCKS: _Rest(), LONG_STEPS: _Rest()}

    def choose(self) -> tuple[DecodeJob, str] | None:
        """Return the stream that is to leave now, and for which relief; None where none is to."""
        if self._moving is not None:
            if self._is_leaving(self._moving[0].key):
                return None
            self._end_move(*self._moving)
        now_s = self._clock.monotonic_s()
        for relief, rest in self._rests.items():
            if now_s >= rest.until_s and self._is_pressed(relief):
                job = self._stream_to_move(relief, now_s)
                if job is not None:
                    self._moving = job, relief
                    return self._moving
        return None

    def _end_move(self, job: DecodeJob, relief: str) -> None:
        """It has left, or ended: the next one follows soon. Or it has stayed, and nobody is asked so soon."""
        self._moving = None
        rest = self._rests[relief]
        if self._book.jobs.get(job.key) is job:
            rest.next_s = min(2 * rest.next_s, MAX_REST_S[relief])
        else:
            rest.next_s = REST_S
        rest.until_s = self._clock.monotonic_s() + rest.next_s

    def _is_pressed(self, relief: str) -> bool:
        if relief == SHORT_OF_BLOCKS:
            return self._book.missing_blocks > 0
        return len(self._book.in_phase(JobPhase.DECODING)) >= MANY_STREAMS

    def _stream_to_move(self, relief: str, now_s: float) -> DecodeJob | None:
        """Return the stream with least KV; of those that make enough room, where blocks are missing."""
        found = [job for job in self._book.in_phase(JobPhase.DECODING) if self._may_move(job, now_s)]
        if relief == SHORT_OF_BLOCKS:
            missing = self._book.missing_blocks
            enough = [job for job in found if job.counted_blocks >= missing]
            if not enough:
                return max(found, key=lambda job: job.counted_blocks, default=None)
            found = enough
        return min(found, key=lambda job: job.num_known_tokens, default=None)

    def _may_move(self, job: DecodeJob, now_s: float) -> bool:
        if job.waits_for_blocks or job.stays_until_s > now_s:
            return False
        if job.is_handed_over and now_s < job.ready_s + STAYS_S:
            return False
        return job.longest - job.num_known_tokens >= FEWEST_TOKENS_LEFT
