"""Note what of an answer has been delivered, and when: for its timeline, the metrics and the console."""

from __future__ import annotations

from services.gateway.rows.row_terms import Attribute
from services.gateway.scope.answer_usefulness import AnswerUsefulness
from services.gateway.scope.recent_latencies import RecentLatencies
from services.gateway.scope.request_timeline import RequestTimeline
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics


class Deliveries:
    """Takes note for one answer. `usefulness`: None where nobody says what is useful."""

    def __init__(
        self, timeline: RequestTimeline, latencies: RecentLatencies, usefulness: AnswerUsefulness | None
    ) -> None:
        self._timeline = timeline
        self._latencies = latencies
        self._usefulness = usefulness
        self._last_s = 0.0
        """The time of the last tokens; 0: none yet."""

    def note_text(self, tokens: int, text: str, reasoning: str = "") -> None:
        """The client has this part of the answer, which may be text without tokens or tokens without text."""
        if tokens:
            self._note_tokens(tokens)
        if self._usefulness is not None:
            self._usefulness.note_delivered(text, reasoning)

    def row_place(self) -> Attribute | None:
        """Return when the client got something last, where plain rows need no more than that and the gaps
        between them; else None."""
        if not self._last_s or (self._usefulness is not None and not self._usefulness.is_useful):
            return None
        return self, "_last_s"

    def note_end(self, *, finished: bool) -> None:
        """The client has all of it, and it is `finished` or has failed."""
        if self._usefulness is not None and finished:
            self._usefulness.note_end()

    def _note_tokens(self, tokens: int) -> None:
        now_s = SYSTEM_CLOCK.monotonic_s()
        gap_s = None
        if self._last_s:
            gap_s = now_s - self._last_s
            metrics.INTER_TOKEN_LATENCY.observe(gap_s)
        else:
            self._timeline.mark_delivered()
        self._latencies.record_delivery(tokens, gap_s, now_s)
        self._last_s = now_s
