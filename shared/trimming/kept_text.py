"""The part of a passage that is kept, and where in the whole passage a place of that part is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shared.messages import Spans

WHOLE: Spans = ()
NOTHING: Spans = (0, 0)
JOINT = " "
"""The text between two kept parts."""


def kept_text(text: str, spans: Spans) -> str:
    """Return the kept parts of a text in their order, all of it where `spans` is WHOLE."""
    return JOINT.join(text[start:end] for start, end in _pairs(spans)) if spans else text


def joined_spans(text: str, spans: Sequence[tuple[int, int]]) -> Spans:
    """Return parts that come in their order as `Spans`: those with nothing but space between them are one,
    and all of the text is WHOLE."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and not text[joined[-1][1] : start].strip():
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    if len(joined) == 1 and text[slice(*joined[0])].strip() == text.strip():
        return WHOLE
    return tuple(place for span in joined for place in span)


def place_in_whole(spans: Spans, start: int, end: int) -> tuple[int, int]:
    """Return where in the whole text the characters `start` to `end` of its kept part are. What was left out
    between the two is within it."""
    if not spans:
        return start, end
    return _place(spans, start), _place(spans, end - 1) + 1


def _place(spans: Spans, at: int) -> int:
    begin = 0
    for start, end in _pairs(spans):
        if at < begin + end - start:
            return start + max(0, at - begin)
        begin += end - start + len(JOINT)
    return spans[-1] - 1


def are_spans_of(spans: Spans, text: str) -> bool:
    """Return whether they are parts of the text, in its order."""
    places = (0, *spans, len(text))
    return len(spans) % 2 == 0 and all(one <= other for one, other in pairwise(places))


def _pairs(spans: Spans) -> list[tuple[int, int]]:
    return list(zip(spans[::2], spans[1::2], strict=True))
