"""Several choices of one prompt: requests of their own, with seeds that follow from the one given."""

from __future__ import annotations

from collections.abc import Sequence

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest

MAX_CHOICES = 128
"""The most choices of one call: its prompts times `n`."""
SEED_SPAN = 1 << 64


def choices_of(message: pb.GenerateRequest) -> Sequence[pb.GenerateRequest]:
    """The requests of a call over gRPC; raises InvalidRequest."""
    if not message.HasField("n"):
        return [message]
    if not 1 <= message.n <= MAX_CHOICES:
        raise InvalidRequest(f"n is {message.n}: send an integer from 1 to {MAX_CHOICES}")
    return repeat_request(message, message.n)


def repeat_request(message: pb.GenerateRequest, n: int) -> list[pb.GenerateRequest]:
    if n > 1 and message.cache.any_seed:
        raise InvalidRequest(f"cache.any_seed would make {n} answers one: send n 1, or leave it out")
    requests = []
    for number in range(n):
        request = pb.GenerateRequest()
        request.CopyFrom(message)
        if message.sampling.HasField("seed"):
            request.sampling.seed = (message.sampling.seed + number) % SEED_SPAN
        requests.append(request)
    return requests
