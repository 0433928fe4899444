"""The error hierarchy. Every failure a user or a service can see is one of these.

    PenstockError
    ├── InvalidRequest        the caller must change the request
    │   ├── NotFound          a model, document or instance that does not exist
    │   │   ├── NoPassages    no passage is as likely to answer as the caller wants
    │   │   └── StreamLost    a stream that nobody can go on with any more
    │   └── ContextExceeded   a prompt that leaves the model no room to answer
    ├── Unauthenticated       nobody knows who asks
    ├── ProtocolError         bytes from the bus that are not a message of ours
    │   ├── UnknownMessage    unknown type or unsupported version
    │   └── ChecksumMismatch  bytes that changed on the way
    ├── TooLarge              over a named size limit
    ├── Overloaded            no room now; may carry a retry hint
    ├── Unavailable           nobody can serve this now
    │   ├── GatewayStopping   the gateway of a resumable stream ends: another one goes on with it
    │   └── NoListener        nobody was there to be asked
    ├── DeadlineExpired       a deadline passed; names the hop
    │   └── NoAnswer          whoever was asked said nothing in time
    ├── Cancelled             somebody asked for it to stop
    │   └── StreamTakenOver   another call goes on with the stream
    ├── StaleEpoch            a message of an earlier route
    └── InternalError         a bug or a broken machine
        └── EngineFault       an engine failed over a batch that this request was in

An error crosses the bus as its `code`, its sentence, the hop and a retry hint, and is raised
again as the same class on the other side. NoListener and NoAnswer are what an asker sees of silence: over the
bus they are the plain errors that they are made of.
"""

from __future__ import annotations

from typing import ClassVar, Self

MAX_SENTENCE_CHARS = 2000
"""A longer error loses its middle: it quotes more of what came than anybody reads, and it crosses the bus."""
_END_CHARS = 500
"""The characters that stay at the end, where a sentence says what to do."""


class PenstockError(Exception):
    """Base of all typed errors.

    `message` is one sentence that says what is wrong and what to do. `hop` names the service where
    it happened ("" when unknown). `retry_after_ms` is 0 when retrying later would not help. `counted`: the
    call that ends with it counts in the limits of its key already. The last stays here.
    """

    code: ClassVar[str] = "internal"
    max_chars: ClassVar[int] = MAX_SENTENCE_CHARS
    counted: bool = False

    def __init__(self, message: str, *, hop: str = "", retry_after_ms: int = 0) -> None:
        message = _sayable(message, self.max_chars)
        super().__init__(message)
        self.message = message
        self.hop = hop
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.hop}: {self.message}" if self.hop else self.message


class InvalidRequest(PenstockError):
    code = "invalid_request"


class NotFound(InvalidRequest):
    code = "not_found"


class NoPassages(NotFound):
    code = "no_passages"


class StreamLost(NotFound):
    code = "stream_lost"


class ContextExceeded(InvalidRequest):
    code = "context_length_exceeded"

    @classmethod
    def of(cls, tokens: int, context_tokens: int, *, at_least: bool = False) -> Self:
        """Make the error in the words that programs look for; `at_least`: there may be more tokens."""
        least = "at least " if at_least else ""
        return cls(
            f"the prompt has {least}{tokens} tokens, and the maximum context length of the model is "
            f"{context_tokens} tokens, those of the answer included: shorten the prompt"
        )


class Unauthenticated(PenstockError):
    code = "unauthenticated"


class ProtocolError(PenstockError):
    code = "protocol"


class UnknownMessage(ProtocolError):
    code = "unknown_message"


class ChecksumMismatch(ProtocolError):
    code = "checksum"


class TooLarge(PenstockError):
    code = "too_large"


class Overloaded(PenstockError):
    """`reason` is a word for metrics. It stays here: of another service one knows that it is full."""

    code = "overloaded"

    def __init__(self, message: str, *, hop: str = "", retry_after_ms: int = 0, reason: str = "full") -> None:
        super().__init__(message, hop=hop, retry_after_ms=retry_after_ms)
        self.reason = reason


class Unavailable(PenstockError):
    code = "unavailable"


class GatewayStopping(Unavailable):
    code = "gateway_stopping"


class NoListener(Unavailable):
    """Never an answer: nobody listens where it was asked."""


class DeadlineExpired(PenstockError):
    code = "expired"


class NoAnswer(DeadlineExpired):
    """Never an answer: there was none. Who answers that a deadline passed is alive."""


class Cancelled(PenstockError):
    code = "cancelled"


class StreamTakenOver(Cancelled):
    code = "stream_taken_over"


class StaleEpoch(PenstockError):
    code = "stale_epoch"


class InternalError(PenstockError):
    code = "internal"


class EngineFault(InternalError):
    """The last words of a worker about a request that its engine was computing when it failed."""

    code = "engine_fault"


def _sayable(message: str, max_chars: int) -> str:
    """Return the sentence without its middle where it is too long, and without halves of characters, which
    neither a log nor the bus can hold."""
    if len(message) > max_chars:
        message = f"{message[: max_chars - _END_CHARS]} … {message[-_END_CHARS:]}"
    return message if message.isascii() else message.encode(errors="backslashreplace").decode()


ERROR_TYPES: dict[str, type[PenstockError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        NotFound,
        NoPassages,
        StreamLost,
        ContextExceeded,
        Unauthenticated,
        ProtocolError,
        UnknownMessage,
        ChecksumMismatch,
        TooLarge,
        Overloaded,
        Unavailable,
        GatewayStopping,
        DeadlineExpired,
        Cancelled,
        StreamTakenOver,
        StaleEpoch,
        InternalError,
        EngineFault,
    )
}


def error_from_code(code: str, message: str, *, hop: str = "", retry_after_ms: int = 0) -> PenstockError:
    """The error that `code` names; a code of a newer version becomes an InternalError that keeps it."""
    error_type = ERROR_TYPES.get(code)
    if error_type is None:
        return InternalError(f"{message} (unknown error code {code!r})", hop=hop)
    return error_type(message, hop=hop, retry_after_ms=retry_after_ms)
