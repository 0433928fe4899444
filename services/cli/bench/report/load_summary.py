"""All figures of a load, from its calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.report.latency_figures import (
    LatencyFigures,
    all_figures,
    figures_of,
    job_figures,
    known,
)
from services.cli.bench.report.prices import Cost, Prices
from services.cli.bench.report.service_level import LevelVerdict, ServiceLevel, is_good, judge
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.loop_watch import GeneratorLoad
from services.cli.bench.run.server_watch import ServerUse
from services.cli.bench.targets.target import CallOutcome

BUCKET_EDGES = (128, 512, 2048, 8192, 32768)
"""The tokens of prompts at which buckets begin."""


@dataclass(frozen=True, slots=True)
class SummarySettings:
    """`warmup_s`: calls that should have been sent before count for nothing."""

    warmup_s: float
    chars_per_token: float
    levels: Sequence[ServiceLevel] = ()
    prices: Prices | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TokenOrigins:
    """Prompt tokens that were computed or found, answers' that a draft had guessed or not; None: not said."""

    prompt_computed: int
    prompt_cached: int | None
    output_decoded: int
    output_drafted: int | None
    earlier_answers: int


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """The figures of one source of a mix; `calls` and `latencies` are of well-behaved clients alone."""

    calls: int
    rates: dict[str, float]
    latencies: dict[str, LatencyFigures]

    @property
    def attainment(self) -> float:
        """The share that kept all objectives of theirs."""
        return self.rates["attainment"]


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """`ends`: how many calls ended how, by conduct, outcome and kind. `seconds`: from the first intended send
    that counts to the last end."""

    seconds: float
    calls: int
    warmup_calls: int
    repeated_calls: int
    ends: dict[tuple[str, str, str], int]
    rates: dict[str, float]
    latencies: dict[str, LatencyFigures]
    buckets: dict[str, dict[str, LatencyFigures]]
    phases: dict[str, LatencyFigures]
    origins: TokenOrigins
    verdicts: list[LevelVerdict]
    cost: Cost | None
    generator: GeneratorLoad
    warnings: list[str]
    server: ServerUse | None
    sources: dict[str, SourceFigures]

    @property
    def goodput(self) -> float:
        return self.rates["goodput"]

    @property
    def cpu_ms_per_output_token(self) -> float:
        """CPU of the server's processes; nan where these are not known."""
        tokens = max(1.0, self.rates["output_tokens_per_s"] * self.seconds)
        return 1e3 * self.server.cpu_s / tokens if self.server else math.nan

    def as_json(self) -> dict[str, Any]:
        def figures(found: dict[str, LatencyFigures]) -> dict[str, Any]:
            return {name: each.as_json() for name, each in found.items()}

        return {
            "seconds": self.seconds,
            "calls": self.calls,
            "warmup_calls": self.warmup_calls,
            "repeated_calls": self.repeated_calls,
            "ends": [
                {"conduct": conduct, "outcome": outcome, "kind": kind, "calls": count}
                for (conduct, outcome, kind), count in self.ends.items()
            ],
            "rates": {name: known(value) for name, value in self.rates.items()},
            "latencies_ms": figures(self.latencies),
            "by_prompt_tokens_ms": {name: figures(found) for name, found in self.buckets.items()},
            "phases_ms": figures(self.phases),
            "token_origins": asdict(self.origins),
            "service_levels": [
                {**asdict(verdict), "measured": known(verdict.measured)} for verdict in self.verdicts
            ],
            "cost": self.cost.as_json() if self.cost else None,
            "generator": asdict(self.generator),
            "server": asdict(self.server) if self.server else None,
            "by_source": {
                name: {
                    "calls": each.calls,
                    "attainment": each.attainment,
                    "rates": {rate: known(value) for rate, value in each.rates.items()},
                    "latencies_ms": figures(each.latencies),
                }
                for name, each in self.sources.items()
            },
            "warnings": self.warnings,
        }


def summarize(result: LoadResult, settings: SummarySettings) -> LoadSummary:
    counted = [record for record in result.records if record.intended_s >= settings.warmup_s]
    well = [record for record in counted if record.conduct is Conduct.WELL]
    finished = [record for record in well if record.finished]
    seconds = max((record.ended_s for record in counted), default=settings.warmup_s)
    seconds = max(1e-9, seconds - min((record.intended_s for record in counted), default=0.0))
    rates = _rates(counted, settings.levels, seconds)
    latencies = _latencies(result.records, settings)
    sources = _by_source(result.records, settings, seconds, (rates, latencies))
    return LoadSummary(
        seconds=seconds,
        calls=len(counted),
        warmup_calls=len(result.records) - len(counted),
        repeated_calls=sum(record.lap > 0 for record in counted),
        ends=dict(Counter((r.conduct.value, r.outcome.value, r.kind) for r in counted).most_common()),
        rates=rates,
        latencies=latencies,
        buckets=_by_bucket(finished, settings),
        phases=_phases(finished),
        origins=_origins(counted),
        verdicts=judge(settings.levels, latencies, rates, sources),
        cost=settings.prices.cost_of(counted, seconds) if settings.prices else None,
        generator=result.generator,
        warnings=_warnings(counted, result.generator),
        server=result.server,
        sources=sources,
    )


def bucket_of(tokens: float) -> str:
    """Return the name of the bucket of prompts with so many tokens."""
    below = [edge for edge in BUCKET_EDGES if tokens >= edge]
    above = [edge for edge in BUCKET_EDGES if tokens < edge]
    if not below:
        return f"under {BUCKET_EDGES[0]}"
    return f"{below[-1]} to {above[0] - 1}" if above else f"{below[-1]} and more"


def _latencies(records: Sequence[CallRecord], settings: SummarySettings) -> dict[str, LatencyFigures]:
    """Return the figures of well-behaved calls that finished, and of jobs."""
    well = [record for record in records if record.conduct is Conduct.WELL]
    finished = [record for record in well if record.finished and record.intended_s >= settings.warmup_s]
    return all_figures(finished, settings.seed) | {"job": job_figures(well, settings.warmup_s)}


def _rates(counted: Sequence[CallRecord], levels: Sequence[ServiceLevel], seconds: float) -> dict[str, float]:
    """Return shares and rates by name; those of a user are medians over finished calls."""
    well = [record for record in counted if record.conduct is Conduct.WELL]
    finished = [record for record in well if record.finished]
    good = sum(is_good(record, levels) for record in well)
    speeds = (record.output_tokens / record.total_s for record in finished if record.total_s > 0)
    return {
        "requests_per_s": sum(record.finished for record in counted) / seconds,
        "goodput": good / seconds,
        "attainment": good / max(1, len(well)),
        "errors": sum(record.is_error for record in counted) / max(1, len(counted)),
        "sheds": sum(r.outcome is CallOutcome.SHED for r in counted) / max(1, len(counted)),
        "output_tokens_per_s": sum(record.output_tokens for record in counted) / seconds,
        "prompt_tokens_per_s": sum(max(0, r.facts.prompt_tokens) for r in counted) / seconds,
        "tokens_per_s_of_a_user": figures_of(speeds).quantiles["p50"].value / 1e3,
    }


def _by_bucket(
    finished: Sequence[CallRecord], settings: SummarySettings
) -> dict[str, dict[str, LatencyFigures]]:
    """Return the figures of each bucket that has calls; by the server's count of tokens where it says one."""
    buckets: dict[int, list[CallRecord]] = {}
    for record in finished:
        told = record.facts.prompt_tokens
        tokens = told if told >= 0 else record.chars / settings.chars_per_token
        buckets.setdefault(sum(tokens >= edge for edge in BUCKET_EDGES), []).append(record)
    edges = (0, *BUCKET_EDGES)
    return {bucket_of(edges[index]): all_figures(buckets[index], settings.seed) for index in sorted(buckets)}


def _by_source(
    records: Sequence[CallRecord],
    settings: SummarySettings,
    seconds: float,
    of_all: tuple[dict[str, float], dict[str, LatencyFigures]],
) -> dict[str, SourceFigures]:
    """Return the figures of each source that has calls that count, by name in order.

    `of_all` are those of all together, which are those of a source that is alone.
    """
    sources: dict[str, list[CallRecord]] = {}
    for record in records:
        sources.setdefault(record.source, []).append(record)
    found = {}
    for name, of_source in sorted(sources.items()):
        counted = [record for record in of_source if record.intended_s >= settings.warmup_s]
        well = sum(record.conduct is Conduct.WELL for record in counted)
        if counted and len(sources) == 1:
            found[name] = SourceFigures(well, *of_all)
        elif counted:
            rates = _rates(counted, settings.levels, seconds)
            found[name] = SourceFigures(well, rates, _latencies(of_source, settings))
    return found


def _phases(finished: Sequence[CallRecord]) -> dict[str, LatencyFigures]:
    """Return the figures of each phase of the server's timelines, in the order in which they first came."""
    names = dict.fromkeys(name for record in finished for name in record.facts.phases_ms)
    return {
        name: figures_of(
            record.facts.phases_ms[name] / 1e3 for record in finished if name in record.facts.phases_ms
        )
        for name in names
    }


def _origins(counted: Sequence[CallRecord]) -> TokenOrigins:
    told = [record for record in counted if not record.facts.earlier_answer]
    prompt = sum(max(0, record.facts.prompt_tokens) for record in told)
    cached = [r.facts.cached_tokens for r in told if r.facts.cached_tokens >= 0]
    drafted = [r.facts.drafted_tokens for r in told if r.facts.drafted_tokens >= 0]
    output = sum(record.output_tokens for record in told)
    return TokenOrigins(
        prompt_computed=prompt - sum(cached),
        prompt_cached=sum(cached) if cached else None,
        output_decoded=output - sum(drafted),
        output_drafted=sum(drafted) if drafted else None,
        earlier_answers=len(counted) - len(told),
    )


def _warnings(counted: Sequence[CallRecord], generator: GeneratorLoad) -> list[str]:
    """Return sentences on what makes figures doubtful."""
    found = [f"{sentence}: use --processes, or another machine" for sentence in generator.warnings()]
    again = sum(record.lap > 0 for record in counted)
    if again:
        found.append(f"{again} of {len(counted)} calls asked what had been asked before: the file ended")
    if not counted:
        found.append("no call counts: all were of the warm-up, or there were none")
    return found
