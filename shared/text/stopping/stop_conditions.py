"""End a streamed text by a request's stop strings and patterns: by the one that is found first."""

from __future__ import annotations

from typing import Protocol

from shared.text.stopping.regex_stops import RegexStopMatcher
from shared.text.stops import StopMatcher


class TextStops(Protocol):
    """Cuts one stream's text before what ends it."""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, what ended the stream or None)."""

    def finish(self) -> tuple[str, str | None]:
        """The stream is over: what was held back, cut where something that ends it stands in it."""


def text_stops(stops: tuple[str, ...], patterns: tuple[str, ...]) -> TextStops:
    """Return the matcher of these. Raises InvalidRequest for what either kind refuses."""
    if not patterns:
        return StopMatcher(stops)
    regexes = RegexStopMatcher(patterns)
    return _FirstOfBoth(StopMatcher(stops), regexes) if stops else regexes


class _FirstOfBoth:
    """Ends a text with the first character at which either says so; if both do, with the one that begins
    first, and of those that begin at the same place with the stop string."""

    def __init__(self, strings: StopMatcher, regexes: RegexStopMatcher) -> None:
        self._both = (strings, regexes)
        self._held = ""
        self._safe = [0, 0]
        """The characters of the held text that each of both has let go."""

    def push(self, text: str) -> tuple[str, str | None]:
        shown: list[str] = []
        for char in text:  # each says at which character it is sure only if it gets them one by one
            self._held += char
            matched = self._take([each.push(char) for each in self._both])
            shown.append(self._show())
            if matched is not None:
                return "".join(shown), matched
        return "".join(shown), None

    def finish(self) -> tuple[str, str | None]:
        matched = self._take([each.finish() for each in self._both])
        return self._show(), matched

    def _take(self, said: list[tuple[str, str | None]]) -> str | None:
        """Take what both say of the same text; return what ends it."""
        cuts = []
        for index, (emit, matched) in enumerate(said):
            self._safe[index] += len(emit)
            if matched is not None:
                cuts.append((self._safe[index], index, matched))
        if not cuts:
            return None
        cut, _, matched = min(cuts)
        self._safe = [cut, cut]
        return matched

    def _show(self) -> str:
        count = min(self._safe)
        self._safe = [each - count for each in self._safe]
        shown, self._held = self._held[:count], self._held[count:]
        return shown
