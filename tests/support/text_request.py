"""A request as the gateway has it once it has been read and checked."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.request import Request, validate_request


def text_request(**fields: object) -> Request:
    """Return the request of a GenerateRequest with these fields, whose prompt is the text "hi"."""
    message = pb.GenerateRequest(**{"text": "hi", **fields})  # type: ignore[arg-type]  # its fields
    return validate_request(message, drawn_seed=1)
