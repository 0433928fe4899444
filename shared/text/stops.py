"""Stop strings in streamed text: cut exactly, hold back only what could still become a match.

Of all the places in the whole text where a stop string stands, the one that starts first wins; of two
that start at the same place the shorter wins, since it is complete first. The answer is the same
however the text is cut into pushes.
"""

from __future__ import annotations

from shared.errors import InvalidRequest

MAX_STOPS = 16
"""The most stop strings of a request."""
MAX_STOP_CHARS = 256
"""The longest stop string."""


class StopMatcher:
    """One stream's matcher. A push costs O(characters * stops), whatever came before.

    Each stop string is followed by Knuth-Morris-Pratt: `_progress[i]` is the length of the longest
    prefix of stop i that the text ends with. That is all that must be known of the past. Text in which no
    stop string begins is passed on unread.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Raises InvalidRequest for too many, empty or over-long stop strings."""
        check_stops(stops)
        self._stops = stops
        self._first_characters = {stop[0] for stop in stops}
        self._borders = tuple(_borders(stop) for stop in stops)
        self._progress = [0] * len(stops)
        self._held = ""
        self._end = 0
        self._best: tuple[int, int, str] | None = None
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop string that ended the stream or None).

        After a match the stream is over: further text is dropped and the match reported again.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._stops:
            return text, None
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None
        self._held += text
        for character in text:
            self._advance(character)
        undecided = self._end - max(self._progress)
        if self._best is not None and self._best[0] <= undecided:
            return self._cut(self._best)
        keep_from = undecided if self._best is None else min(undecided, self._best[0])
        emit_chars = keep_from - (self._end - len(self._held))
        emit, self._held = self._held[:emit_chars], self._held[emit_chars:]
        return emit, None

    def finish(self) -> tuple[str, str | None]:
        """The stream is over: what was held back, cut where a complete stop string stands in it."""
        if self._matched is not None:
            return "", self._matched
        if self._best is not None:
            return self._cut(self._best)
        emit, self._held = self._held, ""
        return emit, None

    def _advance(self, character: str) -> None:
        self._end += 1
        for index, stop in enumerate(self._stops):
            borders = self._borders[index]
            length = self._progress[index]
            while length and stop[length] != character:
                length = borders[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                match = (self._end - length, length, stop)
                self._best = match if self._best is None else min(self._best, match)
                length = borders[length - 1]
            self._progress[index] = length

    def _cut(self, match: tuple[int, int, str]) -> tuple[str, str]:
        start, _, self._matched = match
        emit = self._held[: start - (self._end - len(self._held))]
        self._held = ""
        return emit, self._matched


def check_stops(stops: tuple[str, ...]) -> None:
    """Raise InvalidRequest unless `stops` are at most MAX_STOPS strings of 1 to MAX_STOP_CHARS characters."""
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{len(stops)} stop strings are over the limit of {MAX_STOPS}; send fewer")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(f"a stop string must have 1 to {MAX_STOP_CHARS} characters, not {len(stop)}")


def _borders(pattern: str) -> list[int]:
    """borders[i]: the length of the longest proper prefix of pattern[:i+1] that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[length] != pattern[index]:
            length = borders[length - 1]
        if pattern[length] == pattern[index]:
            length += 1
        borders[index] = length
    return borders
