"""Keep what a stream has told so far, and say how it goes on. Pure: a stream of either kind feeds it."""

from __future__ import annotations

from penstock.client._proto import inference_pb2 as pb
from penstock.client.errors import PenstockError, ServerError, StreamLost
from penstock.client.request import stamp_request
from penstock.client.retry import CallClock, Retry

StreamRequest = pb.GenerateRequest | pb.ResumeRequest


class StreamState:
    """`attempt` counts from 1. `over`: nothing more will come, whatever the reason.

    A stream whose gateway is gone is gone on with at another one, from the tokens that have come; `tried`
    counts the calls for it since the last of them.
    """

    def __init__(self, request: pb.GenerateRequest, retry: Retry, deadline_s: float | None) -> None:
        self.request = request
        request.resumable = retry.resumes > 0 and _can_be_resumed(request)
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
        self.tried = 0
        self._resume_token = ""
        self._received_tokens = 0
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
                self._take_prompt(event.prompt)
            case "prompt_logprobs":
                if event.prompt_logprobs.choice == 0:  # those of the others are the same
                    self.prompt_logprobs += event.prompt_logprobs.logprobs
            case "end":
                self._ends[event.end.choice] = event.end
                if event.end.outcome != pb.OUTCOME_FINISHED:
                    self.failed_end = self.failed_end or event.end
            case "text":
                self.begun = True
                self.tried = 0
                self._received_tokens += len(event.text.token_ids)
                self._add_delta(event.text)
                return event.text
        return None

    def _add_delta(self, delta: pb.TextDelta) -> None:
        message = self._messages.setdefault(delta.choice, pb.ChatMessage(role="assistant"))
        message.content += delta.text
        message.reasoning += delta.reasoning
        for part in delta.tool_calls:
            if part.index == len(message.tool_calls):
                message.tool_calls.add(id=part.id, name=part.name)
            message.tool_calls[part.index].arguments += part.arguments

    def close(self) -> None:
        """The call has ended well; raises ServerError where it has not said so."""
        self.over = True
        if not self._ends:
            raise ServerError("the stream ended without its terminal event: is this a Penstock gateway?")

    @property
    def has_end(self) -> bool:
        """Whether the answer is there whole, though its gateway was gone before it ended the call."""
        return bool(self._resume_token and self._ends) and self.failed_end is None

    def next_message(self) -> StreamRequest:
        """Return what to send now: the request, or that its stream goes on."""
        stamp_request(self.request, self.clock.remaining_s)
        if not self.tried:
            return self.request
        return pb.ResumeRequest(
            token=self._resume_token, received_tokens=self._received_tokens, request=self.request
        )

    def wait_s(self, error: PenstockError) -> float | None:
        """Return how long to wait before `next_message` is sent; None: the stream ends with the error."""
        remaining_s = self.clock.remaining_s
        if isinstance(error, StreamLost) and not self.begun and self.attempt < self.retry.attempts:
            self._begin_again()
            return 0.0
        if self._resume_token:
            wait_s = self.retry.resume_wait_s(error, self.tried, remaining_s)
            if wait_s is not None:
                self.tried += 1
                self._ends, self.failed_end = {}, None
            return wait_s
        wait_s = None if self.begun else self.retry.wait_s(error, self.attempt, remaining_s)
        if wait_s is not None:
            self._begin_again()
        return wait_s

    def _begin_again(self) -> None:
        """The next attempt has a prompt and an end of its own."""
        self.attempt += 1
        self.tried, self._resume_token = 0, ""
        self._prompts, self._ends, self.failed_end, self.prompt_logprobs = {}, {}, None, []

    def _take_prompt(self, prompt: pb.PromptInfo) -> None:
        """A stream that is gone on with has told its passages already."""
        self._resume_token = prompt.resume_token
        known = self._prompts.get(prompt.choice)
        if known is None:
            self._prompts[prompt.choice] = prompt
        else:
            known.request_id, known.resume_token = prompt.request_id, prompt.resume_token


def _can_be_resumed(request: pb.GenerateRequest) -> bool:
    """Return whether a gateway keeps such a stream for another one."""
    return request.n <= 1 and not (request.chat.tools or request.sampling.HasField("prompt_logprobs"))
