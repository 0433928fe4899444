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
    """End the call with the canonical status of `error`."""
    outcome = Outcome.of(error)
    message = str(error)[:MAX_STATUS_CHARS]
    code = grpc.StatusCode[outcome.status]
    told = (*(call.trailing_metadata() or ()), *retry_details(code.value[0], message, outcome.retry_after_ms))
    await call.abort(code, message, told)


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
