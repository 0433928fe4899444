"""The metric that two servers are compared by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from services.cli.bench.report.latency_figures import OF_CALLS, SHARES
from services.cli.bench.report.load_summary import LoadSummary

RATES = ("goodput", "requests_per_s", "output_tokens_per_s", "tokens_per_s_of_a_user")
"""Rates, of which more is better."""
LATENCY = re.compile(rf"({'|'.join((*OF_CALLS, 'itl', 'job'))})_({'|'.join(map(re.escape, SHARES))})")
PHASE = re.compile(rf"phase:([a-z_.]{{1,60}})_({'|'.join(map(re.escape, SHARES))})")
SERVER: dict[str, Callable[[LoadSummary], float]] = {
    "cpu_ms_per_output_token": lambda summary: summary.cpu_ms_per_output_token,
    "peak_memory_mb": lambda summary: summary.server.peak_bytes / 1e6 if summary.server else math.nan,
}
"""Costs of the server's processes, where these are known."""
FORMS = f"ttft_p50, itl_p99 and the like, phase:prefill.compute_p50, {', '.join((*RATES, *SERVER))}"


@dataclass(frozen=True, slots=True)
class AbMetric:
    """`of`: its value in one round, nan where there is none. `hint`: what to do then."""

    name: str
    of: Callable[[LoadSummary], float]
    lower_is_better: bool = True
    hint: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "ttft_p50" and the like. Raises ValueError, which says what is possible."""
        if text in RATES:
            return cls(text, lambda summary: summary.rates[text], lower_is_better=False)
        if text in SERVER:
            return cls(text, SERVER[text], hint="; name the server's processes with --server-pid")
        if match := LATENCY.fullmatch(text):
            quantity, share = match.groups()
            return cls(text, lambda summary: summary.latencies[quantity].quantiles[share].value)
        if match := PHASE.fullmatch(text):
            phase, share = match.groups()
            return cls(text, lambda summary: _phase_ms(summary, phase, share), hint="; see its phases")
        raise ValueError(f"{text!r} is no metric: write {FORMS}")


def _phase_ms(summary: LoadSummary, phase: str, share: str) -> float:
    return summary.phases[phase].quantiles[share].value if phase in summary.phases else math.nan
