"""Patterns in streamed text that end it: cut exactly, and held back is only what may become a match.

The first character at which a match of any pattern is whole ends the text, which is cut where the longest
match that ends there begins. How the text is divided into pushes changes nothing.
"""

from __future__ import annotations

from functools import lru_cache

from shared.errors import InvalidRequest
from shared.text.stopping.regex_automaton import RegexAutomaton
from shared.text.stopping.regex_syntax import parse_regex

MAX_STOP_REGEXES = 8
"""The most patterns that end an answer."""
MAX_STOP_REGEX_CHARS = 256
"""The longest of them."""
MAX_HELD_CHARS = 512
"""The most text that is held back as it may become a match of a pattern. More is shown, and of a match
that began there the rest is cut: it ends the answer all the same."""
KEPT_AUTOMATONS = 64
"""The automata that are kept, the ones that were used last, with the steps that their texts have led to."""


class RegexStopMatcher:
    """One stream's matcher. A push costs O(characters), whatever the patterns are and whatever came
    before."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        """Raises InvalidRequest for what `check_stop_regexes` refuses."""
        check_stop_regexes(patterns)
        self._automaton = _automaton(patterns)
        self._set = self._automaton.begin()
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the match that ended the stream or None).

        After a match the stream is over: further text is dropped and the match reported again.
        """
        if self._matched is not None:
            return "", self._matched
        held, places, automaton = self._held + text, self._set, self._automaton
        begin = 0  # of what may become a match
        for at in range(len(self._held), len(held)):
            places = places.steps.get(held[at]) or automaton.step(places, held[at])
            if places.ends:
                return self._cut(held, max(begin, at + 1 - MAX_HELD_CHARS), at + 1)
            if not places.places:
                begin = at + 1
        begin = max(begin, len(held) - MAX_HELD_CHARS)
        self._set, self._held = places, held[begin:]
        return held[:begin], None

    def finish(self) -> tuple[str, str | None]:
        """The stream is over: what was held back, as nothing of it became a match."""
        emit, self._held = self._held, ""
        return emit, self._matched

    def _cut(self, held: str, begin: int, end: int) -> tuple[str, str]:
        start = self._automaton.match_start(held, begin, end)
        self._held, self._matched = "", held[start:end]
        return held[:start], self._matched


def check_stop_regexes(patterns: tuple[str, ...], name: str = "stop_regex") -> None:
    """Raise InvalidRequest, by `name`, for patterns that are too many, too long or none."""
    if len(patterns) > MAX_STOP_REGEXES:
        raise InvalidRequest(f"{name} has {len(patterns)} patterns: send at most {MAX_STOP_REGEXES}")
    for index, pattern in enumerate(patterns):
        if not 1 <= len(pattern) <= MAX_STOP_REGEX_CHARS:
            raise InvalidRequest(
                f"{name}[{index}] has {len(pattern)} characters: send 1 to {MAX_STOP_REGEX_CHARS}"
            )
        try:
            _automaton((pattern,))
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}[{index}] {error.message}") from error
    try:
        _automaton(patterns)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name} {error.message}") from error


@lru_cache(KEPT_AUTOMATONS)
def _automaton(patterns: tuple[str, ...]) -> RegexAutomaton:
    return RegexAutomaton(tuple(map(parse_regex, patterns)))
