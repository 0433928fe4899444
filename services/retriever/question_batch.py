"""Choose which of the waiting questions are embedded together next.

Together they cost less than one after another, and each waits for all. So the most urgent goes first, and
others come along in the order of their limits as far as the batch stays small: nobody whose time is short
waits for the many words of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from shared.deadline import Deadline

EMBEDDED_BYTES = 1024
"""The bytes of a question that count: what is longer costs no more, since the encoder reads its beginning."""


class WaitingQuestion(Protocol):
    @property
    def end(self) -> Deadline: ...

    @property
    def question_bytes(self) -> int: ...


T = TypeVar("T", bound=WaitingQuestion)


def next_batch(waiting: Iterable[T], most: int, most_bytes: int) -> list[T]:
    """Return the questions that end first: at most `most` of them and `most_bytes` in all; one that is alone
    may be longer than that. A question that is too long for this batch comes first in its turn."""
    batch: list[T] = []
    left_bytes = most_bytes
    for asked in sorted(waiting, key=lambda asked: asked.end):
        size = min(asked.question_bytes, EMBEDDED_BYTES)
        if not batch or size <= left_bytes:
            batch.append(asked)
            left_bytes -= size
        if len(batch) == most:
            break
    return batch
