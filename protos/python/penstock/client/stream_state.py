"""Keep what a stream has told so far. Pure: a stream of either kind feeds it."""

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
        self.failed_end: pb.Terminal | None = None
        """The end of the choice that the call failed with: it comes before those that are cancelled for
        it."""
        self.prompt_logprobs: list[pb.Logprob] = []
        self._prompts: dict[int, pb.PromptInfo] = {}
        self._ends: dict[int, pb.Terminal] = {}
        self._messages: dict[int, pb.ChatMessage] = {}

    @property
    def prompt(self) -> pb.PromptInfo:
        if not self._prompts:
            raise RuntimeError("the prompt's information comes with the first delta: read the stream first")
        return self.prompts[0]

    @property
    def prompts(self) -> list[pb.PromptInfo]:
        """The prompts by choice, of those that have begun."""
        return [self._prompts[choice] for choice in sorted(self._prompts)]

    @property
    def end(self) -> pb.Terminal:
        if not self._ends:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return self.ends[0]

    @property
    def ends(self) -> list[pb.Terminal]:
        """The ends by choice, of those that have ended."""
        return [self._ends[choice] for choice in sorted(self._ends)]

    @property
    def message(self) -> pb.ChatMessage:
        if not self._ends:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return self.messages[0]

    @property
    def messages(self) -> list[pb.ChatMessage]:
        """The messages by choice, as far as they have come."""
        return [
            self._messages.get(choice, pb.ChatMessage(role="assistant")) for choice in sorted(self._prompts)
        ]

    def take_event(self, event: pb.GenerateEvent) -> pb.TextDelta | None:
        """The delta in it, if it is one."""
        match event.WhichOneof("event"):
            case "prompt":
                self._prompts[event.prompt.choice] = event.prompt
            case "prompt_logprobs":
                if event.prompt_logprobs.choice == 0:  # those of the others are the same
                    self.prompt_logprobs += event.prompt_logprobs.logprobs
            case "end":
                self._ends[event.end.choice] = event.end
                if event.end.outcome != pb.OUTCOME_FINISHED:
                    self.failed_end = self.failed_end or event.end
            case "text":
                self.begun = True
                self._add_delta(event.text)
                return event.text
        return None

    def _add_delta(self, delta: pb.TextDelta) -> None:
        message = self._messages.setdefault(delta.choice, pb.ChatMessage(role="assistant"))
        message.content += delta.text
        for part in delta.tool_calls:
            if part.index == len(message.tool_calls):
                message.tool_calls.add(id=part.id, name=part.name)
            message.tool_calls[part.index].arguments += part.arguments

    def close(self) -> None:
        """The call has ended well; raises ServerError where it has not said so."""
        self.over = True
        if not self._ends:
            raise ServerError("the stream ended without its terminal event: is this a Penstock gateway?")

    def begin_again(self) -> None:
        """The next attempt has a prompt and an end of its own."""
        self.attempt += 1
        self._prompts, self._ends, self.failed_end, self.prompt_logprobs = {}, {}, None, []
