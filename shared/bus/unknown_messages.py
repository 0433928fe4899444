"""Log what another version of the code has sent and was refused: each once, however often it comes."""

from __future__ import annotations

import structlog

from shared.bus import subjects
from shared.errors import UnknownMessage

log = structlog.get_logger()

MAX_SENTENCES = 64
"""The most refusals that are remembered and logged; all of them are counted."""


class UnknownMessages:
    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return why messages were refused, each reason once, in the order in which they came."""
        return tuple(self._seen)

    def note(self, subject: str, error: UnknownMessage) -> None:
        if error.message in self._seen or len(self._seen) >= MAX_SENTENCES:
            return
        self._seen[error.message] = None
        sender = subjects.Claim.of(subject).sender
        log.warning(
            "unknown_message",
            sender=sender,
            error=error.message,
            help="two versions of the code that do not understand each other are on this bus",
        )
