"""An operator asks a gateway where the time of a request went that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from shared.messages.trimming import TrimmedPart
from shared.messages.usage import UsageRow


@dataclass(frozen=True, slots=True)
class AccountRequest:
    """operator → gateway (ask): where did the time of this request go? `name` is its id, or the one that its
    client gave it. Answered by a RequestAccount, or by NoAccount."""

    name: str


@dataclass(frozen=True, slots=True)
class PhaseAccount:
    """A phase: at whom, how long, and how long it took others. It is compared by `compared_us`, per generated
    token where `per_token`; `samples` requests had it too."""

    name: str
    instance: str
    duration_us: int
    compared_us: int
    per_token: bool
    samples: int
    p50_us: int
    p95_us: int


@dataclass(frozen=True, slots=True)
class AttemptAccount:
    """A route, on `workers`; `why` is the code of the error that had it replaced, "" for the last one."""

    epoch: int
    workers: tuple[str, ...]
    start_us: int
    end_us: int
    why: str


@dataclass(frozen=True, slots=True)
class RequestAccount:
    """A request that has ended, beside `compared` others of its model whose prompts are in the same length
    band; `ttft_us` is 0 where no token was delivered. `model_choice` says how its model was chosen, "" where
    its client named it. `coalesced_tokens` of its output the request `coalesced_with` has computed, which was
    in flight at the same time. `usage`: what it has used, one row; of an older gateway none.
    `flags`: the versions of the changes of settings that it had. `trimmed`: what was left out of its
    prompt. `expected_tokens` and `most_expected_tokens`: how long its answer was expected to get, in the mean
    and at most; 0 where nobody could tell."""

    request_id: str
    client_id: str
    trace_id: str
    tenant: str
    model: str
    outcome: str
    error: str
    began_unix_us: int
    ttft_us: int
    total_us: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    band: str
    compared: int
    phases: tuple[PhaseAccount, ...]
    attempts: tuple[AttemptAccount, ...]
    model_choice: str = ""
    coalesced_with: str = ""
    coalesced_tokens: int = 0
    usage: tuple[UsageRow, ...] = ()
    flags: tuple[str, ...] = ()
    trimmed: tuple[TrimmedPart, ...] = ()
    expected_tokens: int = 0
    most_expected_tokens: int = 0


@dataclass(frozen=True, slots=True)
class NoAccount:
    """The gateway does not know the request. `phase` is where it is while it still runs, "" where it does
    not; `kept` is how many ended ones are known."""

    phase: str
    kept: int
