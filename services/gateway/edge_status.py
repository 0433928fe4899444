"""The details of a call's status, as gRPC clients and proxies read them: when to come back."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

STATUS_DETAILS = "grpc-status-details-bin"


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
