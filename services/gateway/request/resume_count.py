"""Count what becomes of streams that clients want to go on with here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.gateway.request.resume_token import ResumeClaim, ResumePoint
from shared.errors import PenstockError
from shared.telemetry import metrics

RESUMED = "resumed"


@contextmanager
def failed_resume_counted(resumed: ResumePoint | ResumeClaim | None) -> Iterator[None]:
    """Count the error that ends this block by its code, where a stream is to be gone on with (not None)."""
    try:
        yield
    except PenstockError as error:
        if resumed is not None:
            metrics.RESUMED_STREAMS.labels(result=error.code).inc()
        raise


def count_resumed() -> None:
    """A worker has handed the stream over: it goes on here."""
    metrics.RESUMED_STREAMS.labels(result=RESUMED).inc()
