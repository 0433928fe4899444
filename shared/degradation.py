"""The levels of what is left out under a model's pressure, first to last. Each level includes those below
it."""

from __future__ import annotations

from enum import IntEnum


class DegradationLevel(IntEnum):
    """A gateway tells the level of each model in its heartbeats; its workers act on the highest of them."""

    NONE = 0
    SHORT_DRAFTS = 1
    """Half the draft length."""
    NO_DRAFTS = 2
    RERANK = 3
    """Passages as the first stage ranks them, where the request allows that."""
    RETRIEVAL_DEPTH = 4
    """Fewer passages, where the request allows that."""
    RETRIEVAL = 5
    """No passages, where the request allows that."""
    LOW_PRIORITY = 6
    """New requests of low priority are shed."""
    NEW_REQUESTS = 7
    """The queue takes a whole first-token budget: new requests that have no more than that are shed."""

    @property
    def word(self) -> str:
        """The name in metrics, logs and `penstock status`."""
        return self.name.lower()

    @classmethod
    def heard(cls, level: int) -> DegradationLevel:
        """The level that a heartbeat tells; the nearest one for a number that is none."""
        return cls(min(max(level, cls.NONE), cls.NEW_REQUESTS))
