"""The end of a request: its words, and what they are in gRPC. Exactly one outcome per request."""

from __future__ import annotations

from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import (
    Cancelled,
    DeadlineExpired,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PenstockError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from shared.sampling.parameters import SamplingParams

FINISHED = "finished"
CANCELLED = "cancelled"
EXPIRED = "expired"
SHED = "shed"
FAILED = "failed"
NOTHING_TO_DRAW = "error"
"""The last row's word when the request cannot go on at any worker."""
SHED_RETRY_MS = 500
"""The hint of a shed request where whoever was full gave none."""

_EVENT_OUTCOMES = {
    FINISHED: pb.OUTCOME_FINISHED,
    CANCELLED: pb.OUTCOME_CANCELLED,
    EXPIRED: pb.OUTCOME_EXPIRED,
    SHED: pb.OUTCOME_SHED,
    FAILED: pb.OUTCOME_FAILED,
}
_FINISH_REASONS = {
    "": pb.FINISH_REASON_UNSPECIFIED,
    "stop": pb.FINISH_REASON_STOP,
    "stop_string": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`finish` is the word of the last row of text ("" unless finished); `error` is set unless finished."""

    word: str
    finish: str = ""
    error: PenstockError | None = None

    @classmethod
    def finished(cls, finish: str) -> Outcome:
        return cls(FINISHED, finish=finish)

    @classmethod
    def ended(cls, finish: str, sampling: SamplingParams) -> Outcome:
        """Return the outcome for the last row's word: text that stops where nothing could be drawn is not
        finished, and of a word that is not known nobody can say so."""
        if finish in _FINISH_REASONS:
            return cls.finished(finish)
        if finish != NOTHING_TO_DRAW:
            return cls.of(
                InternalError(
                    f"the stream ended with the word {finish[:20]!r}, which this gateway does not know; its "
                    "detokenizer is of another version"
                )
            )
        if sampling.grammar is not None or sampling.allowed_ids or sampling.bad_words:
            return cls.of(InvalidRequest("the constraints leave no token to draw; loosen them"))
        return cls.of(InternalError("the model's logits are no numbers; check its weights and dtype"))

    @classmethod
    def of(cls, error: PenstockError) -> Outcome:
        """Return the outcome that tells of `error`, which is not raised again."""
        _forget_frames(error)
        return cls(_word_of(error), error=error)

    @property
    def status(self) -> str:
        """The name of the canonical gRPC status."""
        return "OK" if self.error is None else _status_of(self.error)

    @property
    def retry_after_ms(self) -> int:
        """Return when the client may come back; 0 where that would not help."""
        return 0 if self.error is None else _retry_after_ms(self.error)

    def terminal_event(self, usage: pb.Usage, timeline: pb.Timeline) -> pb.Terminal:
        return pb.Terminal(
            outcome=_EVENT_OUTCOMES[self.word],
            finish_reason=_FINISH_REASONS[self.finish],
            usage=usage,
            timeline=timeline,
            error=None if self.error is None else _error_event(self.error),
        )


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that an error was raised in, and of those of its causes.

    They hold the request, the call and what holds the error: garbage that is found by going through all that
    lives, while every stream waits (60 to 120 ms, every five seconds of a flood).
    """
    while error is not None:
        earlier = error.__cause__ or error.__context__
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error = earlier


def _word_of(error: PenstockError) -> str:
    match error:
        case DeadlineExpired():
            return EXPIRED
        case Overloaded():
            return SHED
        case Cancelled():
            return CANCELLED
        case _:
            return FAILED


_STATUS: tuple[tuple[type[PenstockError], str], ...] = (
    (DeadlineExpired, "DEADLINE_EXCEEDED"),
    (Overloaded, "RESOURCE_EXHAUSTED"),
    (Cancelled, "CANCELLED"),
    (NotFound, "NOT_FOUND"),
    (InvalidRequest, "INVALID_ARGUMENT"),
    (TooLarge, "INVALID_ARGUMENT"),
    (Unauthenticated, "UNAUTHENTICATED"),
    (Unavailable, "UNAVAILABLE"),
)
"""The first type that fits; NotFound is an InvalidRequest too."""


def _status_of(error: PenstockError) -> str:
    return next((status for error_type, status in _STATUS if isinstance(error, error_type)), "INTERNAL")


def _retry_after_ms(error: PenstockError) -> int:
    hint_ms = max(0, error.retry_after_ms)
    if isinstance(error, Overloaded):  # "come back at once" would be the same crowd again
        return hint_ms or SHED_RETRY_MS
    return hint_ms


def _error_event(error: PenstockError) -> pb.Error:
    return pb.Error(
        code=error.code,
        message=error.message,
        hop=error.hop,
        retry_after_ms=_retry_after_ms(error),
    )
