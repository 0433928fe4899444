"""Tell when the answer of a request becomes useful to its client, as far as that has been delivered."""

from __future__ import annotations

from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.response_buffer import ResponseBuffer
from shared.telemetry.useful_answer import UsefulMarker, UsefulWatch


class AnswerUsefulness:
    """The usefulness of one answer, by what an operator calls useful. Thinking is none of the answer; one
    that only calls tools is useful when it is whole."""

    def __init__(self, marker: UsefulMarker, timeline: RequestTimeline, response: ResponseBuffer) -> None:
        self._watch = UsefulWatch(marker)
        self._timeline = timeline
        self._response = response

    @property
    def is_useful(self) -> bool:
        """Return whether the client has as much as is useful: what follows changes nothing."""
        return self._watch.is_useful

    def note_delivered(self, text: str, reasoning: str = "") -> None:
        """The client has this part of the answer, and of the thinking before it."""
        if self._watch.is_useful:
            return
        if reasoning:
            self._watch.add(reasoning, thinking=True)
        if text and self._watch.add(text):
            self._timeline.mark_useful()

    def note_end(self) -> None:
        """The client has all of it."""
        if not self._watch.is_useful and (self._watch.end() or self._response.has_called):
            self._timeline.mark_useful()
