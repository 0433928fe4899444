"""An operation is what a route says of itself: who may call it, what comes in, what goes out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

JSON = "application/json"
EVENTS = "text/event-stream"


class Access(StrEnum):
    """The callers of a route where there are API keys."""

    ANYBODY = "anybody"
    KEY = "key"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Operation:
    """`body` and `answer` are names of schemas, "" for none; `streams`: the answer can be events as well.
    `statuses` are what it may answer besides its 200 and what every route of its access may."""

    id: str
    tag: str
    summary: str
    access: Access = Access.KEY
    body: str = ""
    answer: str = ""
    answer_type: str = JSON
    streams: bool = False
    statuses: tuple[int, ...] = ()
