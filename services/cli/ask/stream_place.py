"""Keep up to where an answer has come, and say how another gateway goes on with it. Pure."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import GatewayStopping

MAX_TRIES = 8
"""The most tries in a row to go on with an answer whose gateway is gone."""
FIRST_WAIT_S = 0.1
"""The pause before the second try; it doubles with each further one."""
MAX_WAIT_S = 2.0
"""The longest such pause: a stream is kept for thirty seconds."""


class StreamPlace:
    """`tried` counts the calls to go on since tokens came last."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        self._request = request
        request.resumable = _can_be_resumed(request)
        self._token = ""
        self._received_tokens = 0
        self.tried = 0
        self.resumed = False
        """Another gateway was asked to go on: what is told of the prompt comes once more."""

    def take_event(self, event: pb.GenerateEvent) -> None:
        """Note what has come."""
        if event.HasField("prompt"):
            self._token = event.prompt.resume_token
        elif event.HasField("text") and event.text.token_ids:
            self._received_tokens += len(event.text.token_ids)
            self.tried = 0

    def wait_s(self, *, unavailable: bool, terminal: pb.Terminal | None) -> float | None:
        """Return how long to wait before another gateway is asked; None where nobody can go on.

        `unavailable`: the call ended as one does whose gateway is gone. `terminal` is its last event, if any.
        """
        told = terminal is not None and terminal.error.code != GatewayStopping.code
        retried = self.tried > 0 and terminal is not None and terminal.error.retry_after_ms > 0
        if not (self._token and unavailable) or (told and not retried) or self.tried >= MAX_TRIES:
            return None
        wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** (self.tried - 1)) if self.tried else 0.0
        self.tried += 1
        self.resumed = True
        return wait_s

    def resume_request(self) -> pb.ResumeRequest:
        return pb.ResumeRequest(
            token=self._token, received_tokens=self._received_tokens, request=self._request
        )


def _can_be_resumed(request: pb.GenerateRequest) -> bool:
    """Return whether a gateway keeps such a stream for another one."""
    return request.n <= 1 and not (request.chat.tools or request.sampling.HasField("prompt_logprobs"))
