"""What a stream has told so far. Pure: a stream of either kind feeds it."""

from __future__ import annotations

from penstock.client._proto import inference_pb2 as pb
from penstock.client.errors import ServerError
from penstock.client.retry import CallClock, Retry


class StreamState:
    """`attempt` counts from 1. `over`: nothing more will come, whatever the reason."""

    def __init__(self, request: pb.GenerateRequest, retry: Retry, deadline_s: float | None) -> None:
        self.request = request
        self.retry = retry
        self.clock = CallClock(deadline_s)
        self.attempt = 1
        self.over = False
        self.begun = False
        """Text or tokens have come: from here on a retry would repeat them."""
        self._prompt: pb.PromptInfo | None = None
        self._end: pb.Terminal | None = None

    @property
    def prompt(self) -> pb.PromptInfo:
        if self._prompt is None:
            raise RuntimeError("the prompt's information comes with the first delta: read the stream first")
        return self._prompt

    @property
    def end(self) -> pb.Terminal:
        if self._end is None:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return self._end

    @property
    def last_event(self) -> pb.Terminal | None:
        return self._end

    def take_event(self, event: pb.GenerateEvent) -> pb.TextDelta | None:
        """The delta in it, if it is one."""
        match event.WhichOneof("event"):
            case "prompt":
                self._prompt = event.prompt
            case "end":
                self._end = event.end
            case "text":
                self.begun = True
                return event.text
        return None

    def close(self) -> None:
        """The call has ended well; raises ServerError where it has not said so."""
        self.over = True
        if self._end is None:
            raise ServerError("the stream ended without its terminal event: is this a Penstock gateway?")

    def begin_again(self) -> None:
        """The next attempt has a prompt and an end of its own."""
        self.attempt += 1
        self._prompt = self._end = None
