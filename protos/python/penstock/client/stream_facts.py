"""The facts that a stream of either kind tells of itself beside its deltas."""

from __future__ import annotations

from penstock.client._proto import inference_pb2 as pb
from penstock.client.stream_state import StreamState


class StreamFacts:
    _state: StreamState

    @property
    def prompt(self) -> pb.PromptInfo:
        return self._state.prompt

    @property
    def end(self) -> pb.Terminal:
        return self._state.end

    @property
    def prompts(self) -> list[pb.PromptInfo]:
        """One for each choice that has begun: with `n` they come beside each other."""
        return self._state.prompts

    @property
    def prompt_logprobs(self) -> list[pb.Logprob]:
        """The log-probability of each token of the prompt, the first of them 0, where they were asked for;
        there with the first delta."""
        return self._state.prompt_logprobs

    @property
    def ends(self) -> list[pb.Terminal]:
        return self._state.ends

    @property
    def message(self) -> pb.ChatMessage:
        """The answer, text and calls: send it among the messages of the next request."""
        return self._state.message

    @property
    def messages(self) -> list[pb.ChatMessage]:
        return self._state.messages
