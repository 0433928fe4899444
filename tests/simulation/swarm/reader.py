"""The client of one choice of a call: it checks each event as it comes against the undisturbed answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from tests.simulation.swarm.record import Record

LOGPROB_TOLERANCE = 1e-4


@dataclass
class Response:
    """All that a client got of one choice."""

    ids: list[int]
    logprobs: list[tuple[int, float]]
    prompt_logprobs: list[tuple[int, float]]
    text: str = ""
    prompt_tokens: int = 0
    finish: int = pb.FINISH_REASON_UNSPECIFIED

    @classmethod
    def empty(cls) -> Response:
        return cls([], [], [])


class Reader:
    """`expected`: the undisturbed answer; None where this is to be it."""

    def __init__(self, record: Record, name: str, expected: Response | None, pause_s: float = 0.0) -> None:
        self.got = Response.empty()
        self.end: pb.Terminal | None = None
        self.request_id = ""
        self._record = record
        self._name = name
        self._expected = expected
        self._pause_s = pause_s

    @property
    def outcome(self) -> str:
        """The word of its end, "" before that."""
        return "" if self.end is None else _word(self.end)

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        if self.got.prompt_tokens or self.end:
            self._breaks("nothing comes twice", "another PromptInfo")
        self.got.prompt_tokens = prompt.prompt_tokens
        self.request_id = prompt.request_id
        if self._expected is not None and prompt.prompt_tokens != self._expected.prompt_tokens:
            self._breaks(
                "the same prompt", f"{prompt.prompt_tokens}, not {self._expected.prompt_tokens} tokens"
            )

    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        if told.position != len(self.got.prompt_logprobs) or self.end:
            self._breaks("nothing twice, no gap", f"log-probabilities of the prompt from {told.position}")
        self.got.prompt_logprobs += [(one.token_id, one.logprob) for one in told.logprobs]

    async def write_text(self, event: pb.GenerateEvent) -> None:
        text, got = event.text, self.got
        place = text.position - got.prompt_tokens
        self._record.note(self._name, f"gets {len(text.token_ids)} tokens from {place} and {text.text!r}")
        if self.end is not None:
            self._breaks("nothing after the end", f"tokens from {place}")
        if text.token_ids and place != len(got.ids):
            self._breaks("nothing twice, no gap", f"tokens from {place} after {len(got.ids)}")
        got.ids += text.token_ids
        got.text += text.text
        got.logprobs += [(one.token_id, one.logprob) for one in text.logprobs]
        self._check_so_far()
        await asyncio.sleep(self._pause_s)

    async def write_end(self, end: pb.Terminal) -> None:
        outcome = _word(end)
        why = (
            f": {end.error.code} at {end.error.hop or '?'}: {end.error.message}"
            if end.HasField("error")
            else ""
        )
        self._record.note(self._name, f"ends as {outcome} with {len(self.got.ids)} tokens{why}")
        if self.end is not None:
            self._breaks("one terminal event", f"{outcome} comes after another end")
        self.end, self.got.finish = end, end.finish_reason
        if end.outcome == pb.OUTCOME_FINISHED:
            self._check_whole(end)

    def _check_so_far(self) -> None:
        expected, got = self._expected, self.got
        if expected is None:
            return
        if got.ids != expected.ids[: len(got.ids)]:
            at = next(at for at, token in enumerate(got.ids) if token != [*expected.ids, -1][at])
            self._breaks("the same text as undisturbed", f"token {at} is {got.ids[at]}, not as undisturbed")
        if not expected.text.startswith(got.text):
            self._breaks("the same text as undisturbed", f"{got.text!r}, not {expected.text!r}")

    def _check_whole(self, end: pb.Terminal) -> None:
        got, expected = self.got, self._expected
        if end.usage.completion_tokens != len(got.ids):
            self._breaks(
                "usage is what came", f"{end.usage.completion_tokens} tokens, and {len(got.ids)} came"
            )
        if expected is None:
            return
        if (got.ids, got.text) != (expected.ids, expected.text):
            self._breaks("the same text as undisturbed", f"{len(got.ids)} of {len(expected.ids)} tokens")
        if end.finish_reason != expected.finish:
            name = pb.FinishReason.Name
            self._breaks("the same end as undisturbed", f"{name(got.finish)}, not {name(expected.finish)}")
        for what in ("logprobs", "prompt_logprobs"):
            if not _alike(getattr(got, what), getattr(expected, what)):
                self._breaks("the same log-probabilities as undisturbed", f"other {what}")

    def _breaks(self, rule: str, what: str) -> None:
        self._record.breaks(rule, self._name, what)


def _word(end: pb.Terminal) -> str:
    return pb.Outcome.Name(end.outcome).removeprefix("OUTCOME_").lower()


def _alike(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> bool:
    if [token for token, _ in one] != [token for token, _ in other]:
        return False
    pairs = zip(one, other, strict=True)
    return all(abs(mine - theirs) <= LOGPROB_TOLERANCE for (_, mine), (_, theirs) in pairs)
