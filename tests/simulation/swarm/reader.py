"""The client of one choice of a call: it checks each event as it comes against the undisturbed answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.scope.outcome import FINISHED
from tests.simulation.swarm.record import Record

LOGPROB_TOLERANCE = 1e-4


@dataclass
class Response:
    """All that a client got of one choice. Passages and citations are as one line each."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, float]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, float]] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    finish: int = pb.FINISH_REASON_UNSPECIFIED
    passages: list[str] = field(default_factory=list)
    citations: list[str] = field(default_factory=list)


class Reader:
    """`expected`: the undisturbed answer; None where this is to be it, or where another one may come."""

    def __init__(self, record: Record, name: str, expected: Response | None, pause_s: float = 0.0) -> None:
        self.got = Response()
        self.outcome = ""
        """The word of its end, "" before that."""
        self.request_id = ""
        self.degraded = ""
        self.usage = pb.Usage()
        self.first_s: float | None = None
        """When its first token came, or its first text."""
        self.earlier = ""
        """The request whose answer this is."""
        self._record = record
        self.name = name
        self._expected = expected
        self._pause_s = pause_s

    # ---- over gRPC ------------------------------------------------------------------------------------

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        if self.got.prompt_tokens or self.outcome:
            self._breaks("nothing comes twice", "another PromptInfo")
        self.got.prompt_tokens = prompt.prompt_tokens
        self.request_id = prompt.request_id
        self.take_prompt(prompt.degraded, map(passage_line, prompt.passages))
        self.earlier = prompt.cached.request_id
        if self._expected is not None and prompt.prompt_tokens != self._expected.prompt_tokens:
            self._breaks(
                "the same prompt", f"{prompt.prompt_tokens}, not {self._expected.prompt_tokens} tokens"
            )

    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        if told.position != len(self.got.prompt_logprobs) or self.outcome:
            self._breaks("nothing twice, no gap", f"log-probabilities of the prompt from {told.position}")
        self.got.prompt_logprobs += [(one.token_id, one.logprob) for one in told.logprobs]

    async def write_text(self, event: pb.GenerateEvent) -> None:
        text, got = event.text, self.got
        place = text.position - got.prompt_tokens
        self._record.note(self.name, f"gets {len(text.token_ids)} tokens from {place} and {text.text!r}")
        if text.token_ids and place != len(got.ids):
            self._breaks("nothing twice, no gap", f"tokens from {place} after {len(got.ids)}")
        got.ids += text.token_ids
        got.logprobs += [(one.token_id, one.logprob) for one in text.logprobs]
        self._check_ids()
        self.take_text(text.text)
        await asyncio.sleep(self._pause_s)

    async def write_end(self, end: pb.Terminal) -> None:
        outcome = pb.Outcome.Name(end.outcome).removeprefix("OUTCOME_").lower()
        why = (
            f": {end.error.code} at {end.error.hop or '?'}: {end.error.message}"
            if end.HasField("error")
            else ""
        )
        self.take_end(outcome, end.finish_reason, why)
        self.usage = end.usage
        self.got.citations = [citation_line(one) for one in end.citations]
        if outcome == FINISHED:
            if end.usage.completion_tokens != len(self.got.ids):
                came = f"{end.usage.completion_tokens} tokens, and {len(self.got.ids)} came"
                self._breaks("usage is what came", came)
            self.check_whole()

    # ---- over either edge -----------------------------------------------------------------------------

    def take_prompt(self, degraded: str, passages: Iterable[str]) -> None:
        """The prompt is told; one that is degraded is another prompt."""
        self.degraded = degraded
        self.got.passages = list(passages)
        if degraded:
            self._record.note(self.name, f"goes on without {degraded}")
            self._expected = None
        elif self._expected is not None and self.got.passages != self._expected.passages:
            self._breaks("the same passages", f"{self.got.passages}, not {self._expected.passages}")

    def take_text(self, text: str, *, checked: bool = True) -> None:
        """`checked`: it is known by now which answer this is."""
        if self.outcome:
            self._breaks("nothing after the end", f"{text!r}")
        if self.first_s is None:
            self.first_s = self._record.now_s
        self.got.text += text
        expected = self._expected
        if checked and expected is not None and not expected.text.startswith(self.got.text):
            self._breaks("the same text as undisturbed", f"{self.got.text!r}, not {expected.text!r}")

    def take_end(self, outcome: str, finish: int, why: str = "") -> None:
        self._record.note(self.name, f"ends as {outcome} with {len(self.got.ids)} tokens{why}")
        if self.outcome:
            self._breaks("one terminal event", f"{outcome} comes after another end")
        self.outcome, self.got.finish = outcome, finish

    def check_whole(self) -> None:
        """It has finished: all of it is as undisturbed; a sentence may lack its citation for want of time."""
        got, expected = self.got, self._expected
        if expected is None:
            return
        if (got.ids or expected.ids) != expected.ids or got.text != expected.text:
            self._breaks("the same text as undisturbed", f"{len(got.ids)} of {len(expected.ids)} tokens")
        if got.finish != expected.finish:
            name = pb.FinishReason.Name
            self._breaks("the same end as undisturbed", f"{name(got.finish)}, not {name(expected.finish)}")
        if got.citations and got.citations != expected.citations:
            self._breaks("the same citations", f"{got.citations}, not {expected.citations}")
        for what in ("logprobs", "prompt_logprobs"):
            told = getattr(got, what)
            if (got.ids or told) and not _alike(told, getattr(expected, what)):
                self._breaks("the same log-probabilities as undisturbed", f"other {what}")

    @property
    def expected_tokens(self) -> int | None:
        return None if self._expected is None else len(self._expected.ids)

    def _check_ids(self) -> None:
        expected, got = self._expected, self.got
        if expected is not None and got.ids != expected.ids[: len(got.ids)]:
            at = next(at for at, token in enumerate(got.ids) if token != [*expected.ids, -1][at])
            self._breaks("the same text as undisturbed", f"token {at} is {got.ids[at]}, not as undisturbed")

    def _breaks(self, rule: str, what: str) -> None:
        self._record.breaks(rule, self.name, what)


def passage_line(passage: Any) -> str:
    """A RetrievedPassage, or its fields."""
    return f"{passage.source} {passage.start} {passage.end} {passage.prompt_place}: {passage.text}"


def citation_line(one: Any) -> str:
    """A Citation, or its fields."""
    return f"{one.start} {one.end}: {one.prompt_place} {one.passage_start} {one.passage_end}"


def _alike(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> bool:
    if [token for token, _ in one] != [token for token, _ in other]:
        return False
    pairs = zip(one, other, strict=True)
    return all(abs(mine - theirs) <= LOGPROB_TOLERANCE for (_, mine), (_, theirs) in pairs)
