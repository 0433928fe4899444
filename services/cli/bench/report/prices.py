"""Compute what a load cost, from prices in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from services.cli.bench.run.call_record import CallRecord
from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded_text
from shared.messages import UsageRow

HOUR_S = 3600
HOUR_US = HOUR_S * 10**6
KIB_IN_GIB = 1 << 20
MAX_PRICES_BYTES = 1 << 16
"""The largest file of prices."""
FIELDS = (
    *("input_per_million", "cached_input_per_million", "output_per_million", "machine_per_hour"),
    *("reused_output_per_million", "core_per_hour", "gpu_per_hour", "kv_gib_per_hour"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """`per_million_tokens`: of prompts and answers together."""

    total: float
    per_request: float
    per_million_tokens: float
    per_million_output_tokens: float
    currency: str

    def as_json(self) -> dict[str, float | str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens each, and of hours; what costs nothing is 0.

    A load is paid for by its tokens and the machine, usage by tokens and what engines have spent on them:
    `reused_output_per_million` is for tokens that were computed for another request, or an earlier one.
    """

    input_per_million: float = 0.0
    cached_input_per_million: float = 0.0
    output_per_million: float = 0.0
    machine_per_hour: float = 0.0
    reused_output_per_million: float = 0.0
    core_per_hour: float = 0.0
    gpu_per_hour: float = 0.0
    kv_gib_per_hour: float = 0.0
    currency: str = ""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises InvalidRequest, which names the field."""
        text = read_bounded_text(path, MAX_PRICES_BYTES, f"the price file {path}")
        try:
            read = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the price file {path} is no TOML ({error})") from error
        for name, value in read.items():
            if name == "currency":
                if not isinstance(value, str):
                    raise InvalidRequest(f"{path}: currency is {value!r}; it is a text as EUR")
            elif name not in FIELDS:
                raise InvalidRequest(f"{path}: there is no price {name!r}; there are {', '.join(FIELDS)}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
                raise InvalidRequest(f"{path}: {name} is {value!r}; it is a number of 0 or more")
        if not any(read.get(name) for name in FIELDS):
            raise InvalidRequest(f"{path} has no price; write one of {', '.join(FIELDS)}")
        return cls(**read)

    def cost_of_usage(self, used: UsageRow) -> float:
        """Return the cost of what a tenant has used."""
        reused = used.kept_tokens + used.coalesced_tokens
        computed_prompt = used.prompt_tokens - used.cached_tokens - used.shared_prompt_tokens
        return (
            computed_prompt * self.input_per_million / 1e6
            + (used.cached_tokens + used.shared_prompt_tokens) * self.cached_input_per_million / 1e6
            + (used.output_tokens - reused) * self.output_per_million / 1e6
            + reused * self.reused_output_per_million / 1e6
            + (used.prefill_core_us + used.decode_core_us) * self.core_per_hour / HOUR_US
            + (used.prefill_device_us + used.decode_device_us) * self.gpu_per_hour / HOUR_US
            + used.kv_kib_s * self.kv_gib_per_hour / HOUR_S / KIB_IN_GIB
        )

    def cost_of(self, records: Sequence[CallRecord], seconds: float) -> Cost:
        """Return the cost of calls that a machine was there for so long for."""
        prompt = sum(max(0, record.facts.prompt_tokens) for record in records)
        cached = sum(max(0, record.facts.cached_tokens) for record in records)
        output = sum(record.output_tokens for record in records)
        total = (
            (prompt - cached) * self.input_per_million / 1e6
            + cached * self.cached_input_per_million / 1e6
            + output * self.output_per_million / 1e6
            + seconds * self.machine_per_hour / 3600
        )
        finished = sum(record.finished for record in records)
        return Cost(
            total,
            total / max(1, finished),
            total / max(1, prompt + output) * 1e6,
            total / max(1, output) * 1e6,
            self.currency,
        )
