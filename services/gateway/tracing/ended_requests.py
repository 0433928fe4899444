"""Keep the records of the latest requests and of the worst, find one again, and say what is usual."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from services.gateway.scope.request_record import RequestRecord
from services.gateway.tracing.tail_requests import TailRequests
from services.gateway.tracing.usage_ledger import usage_of
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import AttemptAccount, PhaseAccount, RequestAccount
from shared.telemetry.metrics import prompt_bucket
from shared.telemetry.percentile import percentile

MAX_ENDED_REQUESTS = 1024
"""The most requests whose records a gateway keeps, about 3 KB each; of more the oldest is forgotten."""
PER_TOKEN_PHASES = frozenset({"decode"})
"""The phases whose time is compared by generated token: a longer answer is not a slower one."""
VIEWS = ("latest", "failed", "slow_start", "slow")
"""The names of what ended requests are shown as. One request may be several."""
SENTENCE_CHARS = 300
"""The most of an error's sentence that an account repeats."""


class EndedRequests:
    """The latest requests of a gateway, and in `tail` the failed and slow ones before them."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=MAX_ENDED_REQUESTS)
        self.tail = TailRequests(clock)

    def add(self, record: RequestRecord) -> None:
        """A request has ended."""
        self._records.append(record)
        self.tail.add(record)

    @property
    def kept(self) -> int:
        return len(self._records)

    def latest(self, count: int) -> Sequence[RequestRecord]:
        """Return at most so many, the newest first."""
        return list(islice(reversed(self._records), count))

    def find(self, name: str) -> RequestRecord | None:
        """Return the latest request of that id, ours or its client's; None where it is not known any more."""
        known = chain(reversed(self._records), sorted(self.tail, key=_ended_us, reverse=True))
        return next((r for r in known if name in (r.request_id, r.client_id)), None)

    def account(self, record: RequestRecord) -> RequestAccount:
        """Return where its time went, and where that of others of its model and length went. It takes some
        milliseconds, so call it in a thread."""
        records = list(self._records)  # at once: others are added meanwhile
        others = [other for other in records if _alike(other, record) and other is not record]
        return RequestAccount(
            request_id=record.request_id,
            client_id=record.client_id,
            trace_id=record.span.trace_id,
            tenant=record.tenant,
            model=record.model,
            outcome=record.outcome,
            error=record.error_text[:SENTENCE_CHARS],
            began_unix_us=record.began_unix_us,
            ttft_us=record.ttft_us or 0,
            total_us=record.total_us,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            band=prompt_bucket(record.prompt_tokens),
            compared=len(others),
            phases=tuple(_phase_accounts(record, others)),
            attempts=tuple(_attempt_accounts(record)),
            model_choice="" if record.model_choice is None else record.model_choice.sentence,
            coalesced_with=record.coalesced_with,
            coalesced_tokens=record.coalesced_tokens,
            usage=(usage_of(record),),
            flags=record.flags,
            trimmed=record.trimmed,
            expected_tokens=record.expected_tokens,
            most_expected_tokens=record.most_expected_tokens,
        )


def _ended_us(record: RequestRecord) -> int:
    return record.ended_unix_us


def _alike(other: RequestRecord, record: RequestRecord) -> bool:
    """Return whether the other was answered, by the same model, to a prompt of the same length band."""
    same_band = prompt_bucket(other.prompt_tokens) == prompt_bucket(record.prompt_tokens)
    return bool(other.finish) and other.model == record.model and same_band


def _phase_accounts(record: RequestRecord, others: Sequence[RequestRecord]) -> Iterator[PhaseAccount]:
    """A phase that came several times, in routes that were replaced, is one, at the instance it was last."""
    usual_us = [_comparable_us(other) for other in others]
    instances = {phase.name: record.instance_of(phase) for phase in record.phases}
    for name, duration_us in _sums(record).items():
        samples = sorted(times[name] for times in usual_us if name in times)
        yield PhaseAccount(
            name=name,
            instance=instances[name],
            duration_us=duration_us,
            compared_us=_comparable_us(record)[name],
            per_token=name in PER_TOKEN_PHASES,
            samples=len(samples),
            p50_us=percentile(samples, 0.5, 0),
            p95_us=percentile(samples, 0.95, 0),
        )


def _attempt_accounts(record: RequestRecord) -> Iterable[AttemptAccount]:
    return (
        AttemptAccount(
            attempt.epoch,
            tuple(instance for _, instance in attempt.workers),
            attempt.start_us,
            attempt.end_us,
            attempt.why,
        )
        for attempt in record.attempts
    )


def _sums(record: RequestRecord) -> Counter[str]:
    sums: Counter[str] = Counter()
    for phase in record.phases:
        sums[phase.name] += phase.duration_us
    return sums


def _comparable_us(record: RequestRecord) -> dict[str, int]:
    """Return its phases as they are compared: some by the token."""
    tokens = max(1, record.output_tokens - 1)
    return {name: us // tokens if name in PER_TOKEN_PHASES else us for name, us in _sums(record).items()}
