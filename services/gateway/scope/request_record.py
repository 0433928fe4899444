"""The record of a request that has ended: what its trace is made of, and what `penstock why` tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.gateway.request.model_choice import ModelChoice
from shared.messages import TrimmedPart
from shared.roles import hop_of_phase
from shared.telemetry.timeline import Phase
from shared.telemetry.trace_context import TraceContext

CHAT = "chat"
TEXT = "text_completion"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One route of a request, from where its workers had been asked. `workers` are (role, instance); `why` is
    the code of the error that ended it, "" for the one that the answer came from. A decode worker that took
    the request over stands behind the one that left."""

    epoch: int
    workers: tuple[tuple[str, str], ...]
    start_us: int
    end_us: int
    why: str = ""

    def instance_of(self, role: str) -> str:
        """Return the instance of `role`, "" where the route has none."""
        return dict(self.workers).get(role, "")


@dataclass(frozen=True, slots=True)
class AskedInstance:
    """An instance that was asked before the request had a route, and when."""

    role: str
    instance: str
    start_us: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times are microseconds since `began_unix_us`, by the gateway's clock alone. `span` is the request's own
    span, `parent_span_id` that of its client, "" without one. `error` is the code of the error that ended it,
    `hop` where that was. `model_choice`: how its model was chosen, None where its client named it.
    `coalesced_tokens` of the output another request has computed, `coalesced_with`.
    `useful_us`: when its client had a useful answer, None for never, or where nobody looks.
    `reasoning_tokens` of the output are what the model thought before it answered.
    `kept`: an earlier answer was given again. `flags`: the versions of the changes of settings that it had.
    `trimmed` was left out of its prompt. `expected_tokens` and `most_expected_tokens`: how long its answer
    was expected to get, in the mean and at most; 0 where nobody could tell.
    `counts` are those of its workers, 0 for what they have not
    counted."""

    request_id: str
    client_id: str
    span: TraceContext
    parent_span_id: str
    tenant: str
    model: str
    endpoint: str
    operation: str
    outcome: str
    finish: str
    error: str
    error_text: str
    hop: str
    began_unix_us: int
    total_us: int
    ttft_us: int | None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    replacements: int
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    phases: tuple[Phase, ...]
    asked: tuple[AskedInstance, ...]
    attempts: tuple[Attempt, ...]
    model_choice: ModelChoice | None = None
    coalesced_with: str = ""
    coalesced_tokens: int = 0
    kept: bool = False
    flags: tuple[str, ...] = ()
    trimmed: tuple[TrimmedPart, ...] = ()
    expected_tokens: int = 0
    most_expected_tokens: int = 0
    counts: Mapping[str, int] = field(default_factory=Counter)
    reasoning_tokens: int = 0
    useful_us: int | None = None

    @property
    def is_shared_whole(self) -> bool:
        """Whether nothing of it, its prompt included, was computed for it alone."""
        return self.kept or bool(self.coalesced_tokens and not self.attempts)

    @property
    def ended_unix_us(self) -> int:
        return self.began_unix_us + self.total_us

    @property
    def route(self) -> tuple[tuple[str, str], ...]:
        """Return the instances, (role, instance), that it was on last; none where it was not routed."""
        return self.attempts[-1].workers if self.attempts else ()

    def attempt_at(self, phase: Phase) -> Attempt | None:
        """Return the attempt that the phase is a part of, None before the first, between two, and after."""
        inside = [a for a in self.attempts if a.start_us <= phase.start_us < max(a.end_us, a.start_us + 1)]
        return inside[-1] if inside else None

    def instance_of(self, phase: Phase) -> str:
        """Return the instance whose time the phase was, "" for the gateway's own and the way between."""
        role = hop_of_phase(phase.name)
        attempt = self.attempt_at(phase)
        if attempt is not None:
            return attempt.instance_of(role)
        asked = [each.instance for each in self.asked if each.role == role]
        return asked[-1] if asked else ""

    @property
    def workers(self) -> tuple[str, ...]:
        """Return every instance that had a part in it, in order, each once."""
        routed = [instance for attempt in self.attempts for _, instance in attempt.workers]
        return tuple(dict.fromkeys([each.instance for each in self.asked] + routed))
