"""A request goes on at another decode worker under the same epoch: its own leaves, or is hard pressed."""

from __future__ import annotations

from dataclasses import dataclass

from shared.messages.tokens import Mark

SHORT_OF_BLOCKS = "blocks"
"""The relief that a worker looks for which will soon have no KV blocks left for its requests."""
LONG_STEPS = "steps"
"""The relief that a worker looks for which has many requests: others may be faster."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """decode → gateway (ask): find this request, which I decode, another decode worker.

    It is to have KV and tokens of the first `position` positions, of which I have sent all, and those that
    follow until I stop. Answered by `Successor`.

    `relief`: "" where I leave. Else I go on, am short of this (SHORT_OF_BLOCKS, LONG_STEPS), and keep the
    request unless it is notably better off elsewhere.
    """

    position: int
    relief: str = ""


@dataclass(frozen=True, slots=True)
class Successor:
    """The answer: `decode` has made room and waits for the KV."""

    decode: str


@dataclass(frozen=True, slots=True)
class HandOverDone:
    """decode → gateway: `decode` has all of the request now, and I hold nothing of it any more. `counts` are
    what a last row would have been marked with."""

    decode: str
    counts: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class AllowSuccessor:
    """gateway → detokenizer (ask): tokens of this epoch of a request may come from `decode` as well."""

    gateway: str
    decode: str
