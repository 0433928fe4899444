"""Errors that a call may end with, and how a gRPC status becomes one.

PenstockError
├── InvalidRequest     the caller must change the request
│   └── NotFound       there is no such model
│       └── StreamLost a stream whose gateway is gone cannot be gone on with: send the request again
├── Unauthenticated    an API key is missing or unknown
├── Shed               no room now; `retry_after_ms` says when to come back
├── Expired            a deadline passed
├── Cancelled          somebody asked for it to stop
├── Unavailable        nobody can serve this now
│   └── Dropped        a gateway that was leaving has not begun this: it is sent again by itself
└── ServerError        a bug or a broken machine
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from penstock.client._proto import inference_pb2 as pb

STATUS_DETAILS = "grpc-status-details-bin"

STREAM_LOST = "stream_lost"
UNEXPLAINED = (None, "", "CANCELLED")
"""The details that gRPC gives a call which its server neither took up nor refused, as it came while that
stopped. Who cancels a call, here or by its id, says so."""

Metadata = Iterable[Any]
"""Pairs of a name and a value, text or bytes."""


class PenstockError(Exception):
    """`code` is the server's word for it, `hop` the service where it happened ("" when unknown); `end` is the
    terminal event of a stream, with usage and timeline, where there was one."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        hop: str = "",
        retry_after_ms: int = 0,
        end: pb.Terminal | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hop = hop
        self.retry_after_ms = retry_after_ms
        self.end = end


class InvalidRequest(PenstockError):
    pass


class NotFound(InvalidRequest):
    pass


class StreamLost(NotFound):
    pass


class Unauthenticated(PenstockError):
    pass


class Shed(PenstockError):
    pass


class Expired(PenstockError):
    pass


class Cancelled(PenstockError):
    pass


class Unavailable(PenstockError):
    pass


class Dropped(Unavailable):
    pass


class ServerError(PenstockError):
    pass


_TYPES: dict[grpc.StatusCode, type[PenstockError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Shed,
    grpc.StatusCode.DEADLINE_EXCEEDED: Expired,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
}


def error_of(
    status: grpc.StatusCode, details: str | None, trailing: Metadata | None, end: pb.Terminal | None = None
) -> PenstockError:
    """The error of a call that ended with `status`; what its terminal event says counts before the status."""
    error_type = _TYPES.get(status, ServerError)
    if end is not None and end.HasField("error"):
        told = end.error
        if told.code == STREAM_LOST:
            error_type = StreamLost
        return error_type(
            told.message, code=told.code, hop=told.hop, retry_after_ms=told.retry_after_ms, end=end
        )
    if status is grpc.StatusCode.CANCELLED and details in UNEXPLAINED:
        return Dropped("the gateway left before it had begun this: send it again", code="dropped", end=end)
    return error_type(
        details or status.name, code=status.name.lower(), retry_after_ms=_retry_after_ms(trailing), end=end
    )


def _retry_after_ms(trailing: Metadata | None) -> int:
    """Read the RetryInfo in the trailing metadata; 0 where there is none."""
    for name, value in trailing or ():
        if name == STATUS_DETAILS and isinstance(value, bytes):
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return max(0, int(info.retry_delay.ToMilliseconds()))
    return 0
