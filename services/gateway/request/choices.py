"""Several choices of one call: requests that share a prompt, with seeds that follow from the one given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.request import Request
from shared.errors import InvalidRequest

MAX_CHOICES = 128
"""The most choices of one call: its prompts times `n`."""
SEED_SPAN = 1 << 64


@dataclass(frozen=True, slots=True)
class Choices:
    """The requests of one call: `n` for each of `prompts`, after another. Raises InvalidRequest."""

    prompts: tuple[pb.GenerateRequest, ...]
    n: int = 1

    def __post_init__(self) -> None:
        if self.n > 1 and any(prompt.cache.any_seed for prompt in self.prompts):
            raise InvalidRequest(f"cache.any_seed would make {self.n} answers one: send n 1, or leave it out")

    def __len__(self) -> int:
        return self.n * len(self.prompts)

    @classmethod
    def of(cls, message: pb.GenerateRequest) -> Choices:
        """The choices of a call over gRPC."""
        n = message.n if message.HasField("n") else 1
        if not 1 <= n <= MAX_CHOICES:
            raise InvalidRequest(f"n is {n}: send an integer from 1 to {MAX_CHOICES}")
        return cls((message,), n)

    def share(
        self, prompt: pb.GenerateRequest, request: Request, draw_seed: Callable[[], int]
    ) -> list[Request]:
        """Return the choices of `prompt`, which was checked as `request`: they share all but their seeds."""

        def seed(number: int) -> int:
            if prompt.sampling.HasField("seed"):
                return (request.sampling.seed + number) % SEED_SPAN
            return draw_seed()

        if self.n == 1:
            return [request]
        first = replace(request, coalesces=False)  # they are to be several answers, also where they are equal
        others = [replace(request.sampling, seed=seed(number)) for number in range(1, self.n)]
        return [first, *(replace(first, sampling=sampling) for sampling in others)]
