"""Follow regular expressions through a text, one step a character whatever the patterns are.

The places of the patterns are the states of an automaton (Glushkov 1961), sets of them are bits of an
integer, and the sets that a text leads to are kept with their steps as they come (as in RE2). Nothing
backtracks: a step that is not kept yet costs at most MAX_REGEX_PLACES unions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shared.errors import InvalidRequest
from shared.text.stopping.char_set import CharSet
from shared.text.stopping.regex_syntax import RegexChoice, RegexNode, RegexPlace, RegexRepeat, RegexRow

MAX_REGEX_PLACES = 128
"""The most characters and sets that the patterns which end an answer spell out together, each as often as it
is counted: `a{3}` is three."""
MAX_KEPT_STEPS = 4096
"""The most steps that are kept, of all sets of places, and the most characters; then all are forgotten, and
found again as they come."""


@dataclass(eq=False, slots=True)
class PlaceSet:
    """The `places` at which matches may be that have begun; `ends`: one of them is whole."""

    places: int
    ends: bool
    steps: dict[str, PlaceSet] = field(default_factory=dict)
    """The sets that characters lead to from here, as far as that is known."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The places by which a part of a pattern may begin and end; `empty`: it may be the empty text."""

    empty: bool
    firsts: int
    lasts: int


_EMPTY = _Part(empty=True, firsts=0, lasts=0)


class RegexAutomaton:
    """The automaton of several patterns, of which any may match anywhere in a text."""

    def __init__(self, patterns: Sequence[RegexNode]) -> None:
        """Raises InvalidRequest for patterns with too many places together, and for one that the empty text
        matches; the sentence goes on behind the name of the pattern."""
        self._chars: list[CharSet] = []
        self._next: list[int] = []
        self._previous: list[int] = []
        self._firsts = self._lasts = 0
        if sum(map(_count_places, patterns)) > MAX_REGEX_PLACES:
            raise InvalidRequest(
                f"has too many characters: patterns spell out at most {MAX_REGEX_PLACES} together, each as "
                "often as it is counted"
            )
        for pattern in patterns:
            part = self._add(pattern)
            if part.empty:
                raise InvalidRequest("is of no use: the empty text, which is everywhere, matches it")
            self._firsts |= part.firsts
            self._lasts |= part.lasts
        self._sets: dict[int, PlaceSet] = {}
        self._char_places: dict[str, int] = {}
        self._kept_steps = 0

    def begin(self) -> PlaceSet:
        """Return the set in which no match has begun."""
        return self._set(0)

    def step(self, before: PlaceSet, char: str) -> PlaceSet:
        """Return the set behind `char`, by which another match may begin; `before.steps` has it from then
        on."""
        known = before.steps.get(char)
        if known is not None:
            return known
        if self._kept_steps >= MAX_KEPT_STEPS:
            self._forget()
        found = self._set((self._firsts | _union(self._next, before.places)) & self._places_of(char))
        before.steps[char] = found
        self._kept_steps += 1
        return found

    def match_start(self, text: str, start: int, end: int) -> int:
        """Return where the longest match in text[start:end] begins that ends at `end`; `start` where the
        match has begun before."""
        found, places = start, self._lasts
        for at in range(end - 1, start - 1, -1):
            places &= self._places_of(text[at])
            if places & self._firsts:
                found = at
            if not places:
                break
            places = _union(self._previous, places)
        return found

    def _forget(self) -> None:
        for each in self._sets.values():
            each.steps.clear()
        self._sets.clear()
        self._kept_steps = 0

    def _set(self, places: int) -> PlaceSet:
        found = self._sets.get(places)
        if found is None:
            found = self._sets[places] = PlaceSet(places, bool(places & self._lasts))
        return found

    def _places_of(self, char: str) -> int:
        found = self._char_places.get(char)
        if found is None:
            if len(self._char_places) >= MAX_KEPT_STEPS:
                self._char_places.clear()
            found = sum(1 << place for place, chars in enumerate(self._chars) if chars.has(char))
            self._char_places[char] = found
        return found

    # ---- made of a pattern --------------------------------------------------------------------------

    def _add(self, node: RegexNode) -> _Part:
        if not _count_places(node):
            return _EMPTY
        match node:
            case RegexPlace(chars):
                place = 1 << len(self._chars)
                self._chars.append(chars)
                self._next.append(0)
                self._previous.append(0)
                return _Part(empty=False, firsts=place, lasts=place)
            case RegexChoice(nodes):
                parts = [self._add(each) for each in nodes]
                return _Part(
                    empty=any(part.empty for part in parts),
                    firsts=_either(part.firsts for part in parts),
                    lasts=_either(part.lasts for part in parts),
                )
            case RegexRow(nodes):
                return self._in_a_row([self._add(each) for each in nodes])
            case RegexRepeat(each, least, most):
                return self._repeated(each, least, most)

    def _repeated(self, node: RegexNode, least: int, most: int | None) -> _Part:
        """Write the node out as often as it is counted; what has no most goes round in its last copy."""
        copies = [self._add(node) for _ in range(max(least, 1) if most is None else most)]
        if most is None:
            self._lead(copies[-1].lasts, copies[-1].firsts)
        return self._in_a_row(
            [
                part if at < least else _Part(empty=True, firsts=part.firsts, lasts=part.lasts)
                for at, part in enumerate(copies)
            ]
        )

    def _in_a_row(self, parts: Sequence[_Part]) -> _Part:
        row = _EMPTY
        for part in parts:
            self._lead(row.lasts, part.firsts)
            row = _Part(
                empty=row.empty and part.empty,
                firsts=row.firsts | part.firsts if row.empty else row.firsts,
                lasts=row.lasts | part.lasts if part.empty else part.lasts,
            )
        return row

    def _lead(self, lasts: int, firsts: int) -> None:
        """Let each of `firsts` come behind each of `lasts`."""
        for places, table, others in ((lasts, self._next, firsts), (firsts, self._previous, lasts)):
            left = places
            while left:
                lowest = left & -left
                table[lowest.bit_length() - 1] |= others
                left ^= lowest


def _count_places(node: RegexNode) -> int:
    match node:
        case RegexPlace():
            return 1
        case RegexChoice(nodes) | RegexRow(nodes):
            return sum(map(_count_places, nodes))
        case RegexRepeat(each, least, most):
            return _count_places(each) * (max(least, 1) if most is None else most)


def _union(table: Sequence[int], places: int) -> int:
    """Return all that `table` has for one of `places`."""
    found = 0
    while places:
        lowest = places & -places
        found |= table[lowest.bit_length() - 1]
        places ^= lowest
    return found


def _either(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found
