"""Make a gRPC status of an error, with the time to come back in its details."""

from __future__ import annotations

from typing import Any as AnyMessage
from typing import NoReturn

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from services.gateway.scope.outcome import Outcome
from shared.errors import PenstockError

STATUS_DETAILS = "grpc-status-details-bin"
MAX_STATUS_CHARS = 400
"""The longest message in the status of a call; a terminal event has all of it."""


async def abort_call(
    call: grpc.aio.ServicerContext[AnyMessage, AnyMessage], error: PenstockError
) -> NoReturn:
    """End the call with the canonical status of `error`, here and now."""
    await call.abort(*_status(call, error))


def set_status(call: grpc.aio.ServicerContext[AnyMessage, AnyMessage], error: PenstockError) -> None:
    """Let the call end with the canonical status of `error` when its handler returns.

    Nothing is raised: the library keeps what `abort` raises with the call that it was raised in, which only
    the garbage collector finds then.
    """
    code, message, told = _status(call, error)
    call.set_code(code)
    call.set_details(message)
    call.set_trailing_metadata(told)


def _status(
    call: grpc.aio.ServicerContext[AnyMessage, AnyMessage], error: PenstockError
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    outcome = Outcome.of(error)
    message = str(error)[:MAX_STATUS_CHARS]
    code = grpc.StatusCode[outcome.status]
    details = retry_details(code.value[0], message, outcome.retry_after_ms)
    return code, message, (*(call.trailing_metadata() or ()), *details)


def retry_details(code: int, message: str, retry_after_ms: int) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata with a `google.rpc.RetryInfo`; none where coming back would not help."""
    if retry_after_ms <= 0:
        return ()
    delay = Duration()
    delay.FromMilliseconds(retry_after_ms)
    details = Any()
    details.Pack(RetryInfo(retry_delay=delay))
    status = Status(code=code, message=message, details=[details])
    return ((STATUS_DETAILS, status.SerializeToString()),)
