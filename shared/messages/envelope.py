"""The envelope of every message, and the two answers that any ask may get."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import PenstockError, error_from_code


@dataclass(frozen=True, slots=True)
class Envelope:
    """The part that every message carries besides its body.

    `origin` is the gateway instance whose clock stamped `deadline_us` ("" with no deadline = 0).
    `reply` is the subject an answer goes to ("" when none is expected). `trace` is the `traceparent` of the
    request's span at its gateway, and `tenant` the digest of its tenant; both are for logs alone.
    """

    request_id: str = ""
    epoch: int = 0
    deadline_us: int = 0
    origin: str = ""
    trace: str = ""
    reply: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver holds the request now. `cached_tokens`: how much of the prompt it already has."""

    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A typed error on the wire; the bus raises it again at the asker."""

    code: str
    message: str
    hop: str = ""
    retry_after_ms: int = 0

    @classmethod
    def of(cls, error: PenstockError) -> Failure:
        return cls(error.code, error.message, error.hop, error.retry_after_ms)

    def to_error(self) -> PenstockError:
        return error_from_code(self.code, self.message, hop=self.hop, retry_after_ms=self.retry_after_ms)
