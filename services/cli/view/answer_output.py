"""Two ways to show an answer: as text that streams, or as one JSON object per event."""

from __future__ import annotations

import json
import shutil
from typing import Any, Protocol

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.view.citation_view import citation_fields, cited_line
from services.cli.view.degraded_words import degraded_words
from services.cli.view.passage_view import passage_fields, passage_head
from services.cli.view.reasoning_view import ReasoningView
from services.cli.view.terminal_text import TextSink
from services.cli.view.timeline_table import timeline_table
from services.cli.view.trimmed_words import trimmed_words

OUTCOMES = {
    pb.OUTCOME_FINISHED: "finished",
    pb.OUTCOME_CANCELLED: "cancelled",
    pb.OUTCOME_EXPIRED: "expired",
    pb.OUTCOME_SHED: "shed",
    pb.OUTCOME_FAILED: "failed",
}
NO_PLACE = "-"
"""The mark of a passage that is not in the prompt, instead of the number by which an answer cites it."""
FINISH_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


class AnswerOutput(Protocol):
    def prompt(self, info: pb.PromptInfo) -> None: ...
    def prompt_logprobs(self, told: pb.PromptLogprobs) -> None: ...
    def text(self, delta: pb.TextDelta) -> None: ...
    def end(self, terminal: pb.Terminal) -> None: ...


class TextOutput:
    """The text to `out` as it comes, numbered sources and errors to `err`, the timeline after the text."""

    def __init__(
        self,
        out: TextSink,
        err: TextSink,
        *,
        timeline: bool = False,
        command: str = "penstock ask",
        tell_cut: bool = True,
        reasoning: ReasoningView | None = None,
    ) -> None:
        """`tell_cut`: say where max_tokens has cut the answer, which the user has not asked for. `reasoning`
        shows what the model thinks; without one nobody sees it."""
        self._out = out
        self._err = err
        self._timeline = timeline
        self._command = command
        self._tell_cut = tell_cut
        self._reasoning = reasoning
        self._max_tokens = 0
        self._last = "\n"
        self._texts: list[str] = []
        self._sources: dict[int, pb.RetrievedPassage] = {}

    def prompt(self, info: pb.PromptInfo) -> None:
        self._texts = []
        self._sources = {each.prompt_place: each for each in info.passages if each.prompt_place}
        self._max_tokens = info.sampling.max_tokens
        for passage in sorted(info.passages, key=lambda each: each.prompt_place or len(info.passages) + 1):
            print(_passage_line(passage), file=self._err)
        if info.retrieval_query:
            searched = " ".join(info.retrieval_query.split())
            print(f"{self._command}: searched for: {searched}", file=self._err)
        if info.HasField("model_choice"):
            print(f"{self._command}: {info.model_choice.why}", file=self._err)
        if info.degraded:
            print(f"{self._command}: answered with less: {degraded_words(info.degraded)}", file=self._err)
        if info.warning:
            print(f"{self._command}: {info.warning}", file=self._err)
        if info.trimmed:
            print(f"{self._command}: left out: {trimmed_words(info.trimmed)}", file=self._err)
        if info.HasField("cached"):
            print(f"{self._command}: {_told(info.cached)}", file=self._err)

    def prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        """Like those of the answer, they are for `--json` alone."""

    def show_reasoning(self, delta: pb.TextDelta) -> None:
        """Show what is thought in it, and end that where the answer begins."""
        if self._reasoning is not None:
            if delta.reasoning:
                self._reasoning.add(delta.reasoning)
            if delta.text:
                self._reasoning.end()

    def text(self, delta: pb.TextDelta) -> None:
        self.show_reasoning(delta)
        if delta.text:
            self._last = delta.text
            if self._sources:
                self._texts.append(delta.text)
            self._out.write(delta.text)
            self._out.flush()

    def end(self, terminal: pb.Terminal) -> None:
        if self._reasoning is not None:
            self._reasoning.end()
        if not self._last.endswith("\n"):
            self._out.write("\n")
        if self._timeline:
            self._out.write(timeline_table(terminal.timeline, terminal_width()))
        self._out.flush()
        for citation in terminal.citations:
            print(f"{self._command}: {cited_line(citation, self.said(), self._sources)}", file=self._err)
        if terminal.outcome != pb.OUTCOME_FINISHED:
            print(f"{self._command}: {sentence(terminal)}", file=self._err)
        elif terminal.finish_reason == pb.FINISH_REASON_LENGTH and self._tell_cut:
            print(f"{self._command}: {self._cut_after(terminal.usage)}", file=self._err)

    def said(self) -> str:
        """Return the text of an answer from passages."""
        return "".join(self._texts)

    def _cut_after(self, usage: pb.Usage) -> str:
        cut = f"the answer was cut after {usage.completion_tokens} tokens"
        if usage.completion_tokens < self._max_tokens:
            return f"{cut}: the model's context is full"
        return f"{cut}: {self.longer_answer(2 * usage.completion_tokens)}"

    def longer_answer(self, tokens: int) -> str:
        """Say how to get an answer of up to so many tokens."""
        return f"--max-tokens {tokens} lets it go on for longer"


class JsonOutput:
    """One object per line; the last one has `"event": "end"`. The timeline's table goes to `err`."""

    def __init__(self, out: TextSink, err: TextSink, *, timeline: bool = False) -> None:
        self._out = out
        self._err = err
        self._timeline = timeline

    def prompt(self, info: pb.PromptInfo) -> None:
        self._write(
            event="prompt",
            request_id=info.request_id,
            model=info.model,
            prompt_tokens=info.prompt_tokens,
            seed=info.seed,
            passages=[_told_passage(each) for each in info.passages],
            degraded=info.degraded,
            warning=info.warning,
            retrieval_query=info.retrieval_query,
            sampling=_numbers(info.sampling),
            **({"cached": _cached(info.cached)} if info.HasField("cached") else {}),
            **({"model_choice": _choice(info.model_choice)} if info.HasField("model_choice") else {}),
            **({"coalesced_with": info.coalesced_with} if info.coalesced_with else {}),
            **({"trimmed": [_part(each) for each in info.trimmed]} if info.trimmed else {}),
        )

    def prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        self._write(
            event="prompt_logprobs",
            position=told.position,
            logprobs=[_logprob(row) for row in told.logprobs],
        )

    def text(self, delta: pb.TextDelta) -> None:
        event: dict[str, Any] = {
            "event": "text",
            "text": delta.text,
            "token_ids": list(delta.token_ids),
            "position": delta.position,
        }
        if delta.reasoning:
            event["reasoning"] = delta.reasoning
        if delta.logprobs:
            event["logprobs"] = [_logprob(row) for row in delta.logprobs]
        self._write(**event)

    def end(self, terminal: pb.Terminal) -> None:
        self._write(
            event="end",
            outcome=outcome_word(terminal.outcome),
            finish_reason=FINISH_REASONS.get(terminal.finish_reason),
            usage={field.name: getattr(terminal.usage, field.name) for field in pb.Usage.DESCRIPTOR.fields},
            timeline=_timeline(terminal.timeline),
            citations=[citation_fields(each) for each in terminal.citations],
            error=_error(terminal) if terminal.HasField("error") else None,
        )
        if self._timeline:
            self._err.write(timeline_table(terminal.timeline, terminal_width()))

    def _write(self, **event: Any) -> None:
        self._out.write(json.dumps(event, ensure_ascii=False) + "\n")
        self._out.flush()


def _passage_line(passage: pb.RetrievedPassage) -> str:
    if passage.prompt_place:
        return f"[{passage.prompt_place}] {passage_head(passage)}"
    return f"[{NO_PLACE}] {passage_head(passage)}, not in the prompt"


def _told_passage(passage: pb.RetrievedPassage) -> dict[str, Any]:
    """Return it with its place in the prompt, and with what of it stands there where that is not all."""
    spans = [[span.start, span.end] for span in passage.in_prompt]
    told = {**passage_fields(passage), "prompt_place": passage.prompt_place}
    return told | ({"in_prompt": spans} if spans else {})


def _part(part: pb.TrimmedPart) -> dict[str, Any]:
    return {"what": part.what, "count": part.count, "tokens": part.tokens}


def terminal_width() -> int:
    """Return the width that COLUMNS says, else the terminal itself; 80 where there is none."""
    return shutil.get_terminal_size().columns


def outcome_word(outcome: pb.Outcome) -> str:
    """An outcome this version does not know counts as failed."""
    return OUTCOMES.get(outcome, "failed")


def sentence(terminal: pb.Terminal) -> str:
    error = terminal.error
    at_hop = f" (at {error.hop})" if error.hop else ""
    retry = f"; try again in {error.retry_after_ms} ms" if error.retry_after_ms else ""
    return f"{outcome_word(terminal.outcome)}: {error.message}{at_hop}{retry}"


def _logprob(row: pb.Logprob) -> dict[str, Any]:
    return {
        "token_id": row.token_id,
        "logprob": row.logprob,
        "top": [{"token_id": top.token_id, "logprob": top.logprob} for top in row.top],
    }


def _timeline(timeline: pb.Timeline) -> dict[str, Any]:
    return {
        "ttft_us": timeline.ttft_us,
        "total_us": timeline.total_us,
        "useful_us": timeline.useful_us,
        "region": timeline.region,
        "phases": [
            {"name": phase.name, "start_us": phase.start_us, "duration_us": phase.duration_us}
            for phase in timeline.phases
        ],
    }


def _error(terminal: pb.Terminal) -> dict[str, Any]:
    error = terminal.error
    return {
        "code": error.code,
        "message": error.message,
        "hop": error.hop,
        "retry_after_ms": error.retry_after_ms,
    }


def _numbers(sampling: pb.Sampling) -> dict[str, int | float]:
    """Write numbers as they were said: the shortest number that is the same float32."""
    return {
        field.name: float(f"{value:.7g}") if isinstance(value, float) else value
        for field, value in sampling.ListFields()
    }


def _told(cached: pb.CachedAnswer) -> str:
    whose = (
        "an earlier answer"
        if cached.similarity == 1.0
        else f"the answer to a question {cached.similarity:.3f} similar"
    )
    return f"{whose}, {cached.age_ms / 1e3:.0f} s old, of request {cached.request_id}"


def _cached(cached: pb.CachedAnswer) -> dict[str, object]:
    return {"request_id": cached.request_id, "age_ms": cached.age_ms, "similarity": cached.similarity}


def _choice(choice: pb.ModelChoice) -> dict[str, Any]:
    """Return how the model was chosen, as the contract has it."""
    return {
        "asked": choice.asked,
        "rule": choice.rule,
        "why": choice.why,
        **({"hardness": choice.hardness} if choice.HasField("hardness") else {}),
        "skipped": [{"model": each.model, "why": each.why} for each in choice.skipped],
    }
