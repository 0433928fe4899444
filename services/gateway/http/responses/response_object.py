"""OpenAI's response object, about its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.responses.responses import AskedResponse

ID_PREFIX = "resp_"
STATUSES = {pb.FINISH_REASON_LENGTH: "incomplete"}
"""The status of an answer by how it finished; otherwise it is completed."""


class ResponseObject:
    """`request_id` names it."""

    def __init__(self, request_id: str, asked: AskedResponse, created_unix_s: int) -> None:
        self._id = ID_PREFIX + request_id
        self._asked = asked
        self._created_unix_s = created_unix_s

    def describe(
        self,
        status: str,
        model: str,
        output: Sequence[Mapping[str, Any]] = (),
        *,
        usage: pb.Usage | None = None,
        error: Mapping[str, Any] | None = None,
        in_force: pb.Sampling | None = None,
    ) -> dict[str, Any]:
        """`in_force`: what the model's defaults have made of its sampling, where that is known."""
        sampling = self._asked.sampling if in_force is None else in_force
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_unix_s,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": model,
            "output": list(output),
            "max_output_tokens": sampling.max_tokens,
            "temperature": _stated(sampling, "temperature"),
            "top_p": _stated(sampling, "top_p"),
            "store": False,
            "background": False,
            "previous_response_id": None,
            "usage": None if usage is None else _usage(usage),
            **self._asked.repeated,
        }


def status_of(end: pb.Terminal) -> str:
    """Return the status of a response that has finished."""
    return STATUSES.get(end.finish_reason, "completed")


def _usage(usage: pb.Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _stated(sampling: pb.Sampling, name: Literal["temperature", "top_p"]) -> float | None:
    return getattr(sampling, name) if sampling.HasField(name) else None
