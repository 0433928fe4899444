"""Messages about what tenants have used: an operator asks each gateway."""

from __future__ import annotations

from dataclasses import dataclass

MAX_USAGE_ROWS = 1024
"""The most pairs of a tenant and a model that a gateway keeps apart; later ones are one, `other`."""


@dataclass(frozen=True, slots=True)
class UsageRequest:
    """operator → gateway: what has been used since you started?"""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Sums over the requests of a tenant to a model that have ended.

    Of `prompt_tokens`, `cached_tokens` had KV already and `shared_prompt_tokens` were computed for another
    request, or for an earlier one whose answer was given again; the rest was computed. Of `output_tokens`,
    `kept_tokens` are those of earlier answers, `coalesced_tokens` were drawn for another request at the same
    time, the rest was drawn; of that, `drafted_tokens` were drafts that were accepted.

    `*_core_us` are microseconds of a core in the engines, `*_device_us` those of a GPU. `kv_kib_s`: KiB of KV
    times the seconds for which they were held.
    """

    tenant: str
    model: str
    requests: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    shared_prompt_tokens: int
    output_tokens: int
    kept_tokens: int
    coalesced_tokens: int
    drafted_tokens: int
    prefill_core_us: int
    decode_core_us: int
    prefill_device_us: int
    decode_device_us: int
    kv_kib_s: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """All since `since_unix_us`, when the life `incarnation` of the gateway began to count."""

    incarnation: int
    since_unix_us: int
    rows: tuple[UsageRow, ...]
