"""Sum what the requests of each tenant to each model have used, since this gateway started."""

from __future__ import annotations

from collections.abc import Iterator

from services.gateway.scope.request_record import RequestRecord
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import MAX_USAGE_ROWS, UsageRow
from shared.telemetry.bounded_label import OTHER

SUMS = tuple(name for name in UsageRow.__dataclass_fields__ if name not in ("tenant", "model"))


class UsageLedger:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.since_unix_us = clock.unix_us()
        self._sums: dict[tuple[str, str], dict[str, int]] = {}

    def add(self, record: RequestRecord) -> None:
        """A request has ended."""
        key = record.tenant, record.model
        if key not in self._sums and len(self._sums) >= MAX_USAGE_ROWS - 1:
            key = OTHER, OTHER
        sums = self._sums.setdefault(key, dict.fromkeys(SUMS, 0))
        used = usage_of(record)
        for name in SUMS:
            sums[name] += getattr(used, name)

    def rows(self) -> Iterator[UsageRow]:
        for (tenant, model), sums in self._sums.items():
            yield UsageRow(tenant, model, **sums)


def usage_of(record: RequestRecord) -> UsageRow:
    """Return what one request has used."""
    counts = record.counts
    shared_prompt = record.prompt_tokens if record.is_shared_whole else 0
    return UsageRow(
        tenant=record.tenant,
        model=record.model,
        requests=1,
        finished=int(bool(record.finish)),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=0 if shared_prompt else record.cached_tokens,
        shared_prompt_tokens=shared_prompt,
        output_tokens=record.output_tokens,
        kept_tokens=record.output_tokens if record.kept else 0,
        coalesced_tokens=record.coalesced_tokens,
        drafted_tokens=counts["draft_accepted"],
        prefill_core_us=counts["prefill_core_us"],
        decode_core_us=counts["decode_core_us"],
        prefill_device_us=counts["prefill_device_us"],
        decode_device_us=counts["decode_device_us"],
        kv_kib_s=counts["kv_kib_s"],
    )
