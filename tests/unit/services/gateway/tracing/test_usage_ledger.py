"""What the requests of a tenant have used, by where their tokens came from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from services.gateway.tracing.usage_ledger import UsageLedger, usage_of
from shared.messages import MAX_USAGE_ROWS
from tests.support.records import make_record

COUNTS = Counter(draft_accepted=2, prefill_core_us=30, decode_core_us=40, kv_kib_s=5)
COMPUTED = replace(
    make_record(), tenant="acme", model="m", prompt_tokens=10, cached_tokens=4, output_tokens=6, counts=COUNTS
)


def test_sums_are_kept_by_tenant_and_model() -> None:
    ledger = UsageLedger()
    for record in (COMPUTED, replace(COMPUTED, finish=""), replace(COMPUTED, tenant="other")):
        ledger.add(record)
    (acme, _) = ledger.rows()
    assert (acme.tenant, acme.requests, acme.finished) == ("acme", 2, 1)
    assert (acme.prompt_tokens, acme.cached_tokens, acme.output_tokens, acme.drafted_tokens) == (20, 8, 12, 4)
    assert (acme.prefill_core_us, acme.decode_core_us, acme.kv_kib_s) == (60, 80, 10)


def test_what_is_given_again_or_shared_was_not_computed() -> None:
    kept = usage_of(replace(COMPUTED, kept=True, counts=Counter()))
    assert (kept.cached_tokens, kept.shared_prompt_tokens, kept.kept_tokens) == (0, 10, 6)
    shared = usage_of(
        replace(COMPUTED, coalesced_with="r", coalesced_tokens=6, attempts=(), counts=Counter())
    )
    assert (shared.shared_prompt_tokens, shared.coalesced_tokens, shared.kept_tokens) == (10, 6, 0)


def test_tenants_beyond_the_bound_are_one() -> None:
    ledger = UsageLedger()
    for number in range(MAX_USAGE_ROWS + 5):
        ledger.add(replace(COMPUTED, tenant=f"tenant-{number}"))
    rows = list(ledger.rows())
    assert len(rows) == MAX_USAGE_ROWS
    assert (rows[-1].tenant, rows[-1].requests) == ("other", 6)
