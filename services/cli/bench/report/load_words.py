"""A summary as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.cli.bench.report.latency_figures import SHARES, LatencyFigures, QuantileFigure
from services.cli.bench.report.load_summary import LoadSummary, SourceFigures
from services.cli.bench.report.service_level import LevelVerdict
from services.cli.bench.run.rate_sweep import SweepResult
from services.cli.view.table import table

NOT_KNOWN = "-"
HEAD = ("ms", "calls", "mean", *SHARES)
SOURCE_HEAD = (
    *("source, ms", "calls", "attained", "goodput/s", "shed", "errors"),
    *("ttft p50", "ttft p99", "itl p50", "itl p99", "e2e p50", "e2e p99"),
)
SWEEP_HEAD = (
    "rate/s",
    "goodput/s",
    "attained",
    "tokens/s",
    "ttft p50",
    "ttft p99",
    "itl p99",
    "shed",
    "errors",
)
UNITS = {"errors": "%", "sheds": "%", "goodput": "/s", "requests_per_s": "/s", "output_tokens_per_s": "/s"}


def summary_words(summary: LoadSummary) -> str:
    """Return everything that is said of one load, most important first."""
    parts = [
        _first_lines(summary),
        table(HEAD, _latency_rows(summary.latencies, intervals=True)),
        _phase_words(summary.phases),
        _bucket_words(summary.buckets),
        _source_words(summary.sources),
        _server_words(summary),
        _ends(summary),
        _cost(summary),
        "\n".join(map(verdict_words, summary.verdicts)),
        "\n".join(f"warning: {sentence}" for sentence in summary.warnings),
    ]
    return "\n\n".join(part for part in parts if part)


def sweep_words(sweep: SweepResult[LoadSummary]) -> str:
    rows = [_sweep_row(rate, step) for rate, step in sweep.steps]
    rate = sweep.steps[sweep.shown][0]
    if sweep.knee is None:
        knee = f"knee: none, no call met its objectives at any rate; the figures are of {rate:.3g} requests/s"
    elif sweep.reached:
        knee = f"knee: goodput grew up to {rate:.3g} requests/s, and no more beyond"
    else:
        knee = f"knee: not reached, goodput still grew at {rate:.3g} requests/s; sweep further"
    return f"{table(SWEEP_HEAD, rows)}\n\n{knee}"


def verdict_words(verdict: LevelVerdict) -> str:
    quantity = verdict.text.rpartition(":")[2].partition("<")[0].partition(">")[0]
    unit = UNITS.get(quantity, " ms")
    value = verdict.measured * 100 if unit == "%" else verdict.measured
    word = "kept" if verdict.kept else "missed"
    unsure = "" if verdict.sure else ", within its interval: more calls would tell"
    return f"{word:6}  {verdict.text}: {number(value)}{unit}{unsure}"


def number(value: float) -> str:
    """Return three digits, or more where a number has more before its point."""
    if not math.isfinite(value):
        return NOT_KNOWN
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _first_lines(summary: LoadSummary) -> str:
    rates, origins = summary.rates, summary.origins
    cached = "" if origins.prompt_cached is None else f", {origins.prompt_cached} cached"
    drafted = "" if origins.output_drafted is None else f", {origins.output_drafted} drafted"
    earlier = f"; {origins.earlier_answers} earlier answers" if origins.earlier_answers else ""
    generator = summary.generator
    return "\n".join(
        (
            f"{summary.calls} calls in {summary.seconds:.1f} s, {summary.warmup_calls} of the warm-up; "
            f"{number(rates['requests_per_s'])} finished/s, goodput {number(rates['goodput'])}/s, "
            f"{rates['attainment']:.1%} attained, {rates['errors']:.1%} errors, {rates['sheds']:.1%} shed",
            f"{number(rates['output_tokens_per_s'])} output tokens/s, "
            f"{number(rates['tokens_per_s_of_a_user'])} for one user, "
            f"{number(rates['prompt_tokens_per_s'])} prompt tokens/s",
            f"tokens of prompts: {origins.prompt_computed} computed{cached}; "
            f"of answers: {origins.output_decoded} decoded{drafted}{earlier}",
            f"generator: sends {generator.send_late_p99_ms:.1f} ms late at p99, its loop "
            f"{generator.loop_late_p99_ms:.1f} ms, {generator.cpu_share:.0%} of a core",
        )
    )


def _latency_rows(figures: dict[str, LatencyFigures], *, intervals: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, figure in figures.items():
        if figure.count:
            values = (number(figure.quantiles[share].value) for share in SHARES)
            rows.append((name, str(figure.count), number(figure.mean), *values))
            if intervals:
                rows.append(("", "", "95 %", *(_interval(figure.quantiles[share]) for share in SHARES)))
    return rows


def _interval(figure: QuantileFigure) -> str:
    low, high = math.isfinite(figure.low), math.isfinite(figure.high)
    if low and high:
        return f"{number(figure.low)}..{number(figure.high)}"
    if low:
        return f"{number(figure.low)} or more"
    return f"{number(figure.high)} or less" if high else NOT_KNOWN


def _phase_words(phases: dict[str, LatencyFigures]) -> str:
    rows = _latency_rows(phases, intervals=False)
    return table(("phase, ms", *HEAD[1:]), rows) if rows else ""


def _bucket_words(buckets: dict[str, dict[str, LatencyFigures]]) -> str:
    if len(buckets) < 2:
        return ""
    rows = [
        (bucket, *row)
        for bucket, figures in buckets.items()
        for row in _latency_rows({name: figures[name] for name in ("ttft", "itl", "e2e")}, intervals=False)
    ]
    return table(("prompt tokens", *HEAD), rows)


def _source_words(sources: dict[str, SourceFigures]) -> str:
    if len(sources) < 2:
        return ""
    rows = [
        (name, str(each.calls), *_some_rates(each.rates), *_some_quantiles(each.latencies))
        for name, each in sources.items()
    ]
    return table(SOURCE_HEAD, rows)


def _some_rates(rates: dict[str, float]) -> Sequence[str]:
    shares = (f"{rates[name]:.1%}" for name in ("sheds", "errors"))
    return (f"{rates['attainment']:.1%}", number(rates["goodput"]), *shares)


def _some_quantiles(latencies: dict[str, LatencyFigures]) -> Sequence[str]:
    return [
        number(latencies[name].quantiles[share].value)
        for name in ("ttft", "itl", "e2e")
        for share in ("p50", "p99")
    ]


def _server_words(summary: LoadSummary) -> str:
    server = summary.server
    if server is None:
        return ""
    memory = f", peak memory {server.peak_bytes / 2**20:.0f} MiB" if server.peak_bytes else ""
    return (
        f"server: {server.processes} processes, {server.cpu_s:.1f} CPU seconds, "
        f"{summary.cpu_ms_per_output_token:.3g} ms of CPU an output token{memory}"
    )


def _ends(summary: LoadSummary) -> str:
    if len(summary.ends) < 2:
        return ""
    rows = [(*end, str(count)) for end, count in summary.ends.items()]
    return table(("client", "end", "kind", "calls"), rows)


def _cost(summary: LoadSummary) -> str:
    cost = summary.cost
    if cost is None:
        return ""
    return (
        f"cost: {cost.total:.4g} {cost.currency}, {cost.per_request:.4g} a finished request, "
        f"{cost.per_million_tokens:.4g} a million tokens, {cost.per_million_output_tokens:.4g} a million "
        "of answers"
    )


def _sweep_row(rate: float, step: LoadSummary) -> Sequence[str]:
    ttft, itl = step.latencies["ttft"].quantiles, step.latencies["itl"].quantiles
    return (
        number(rate),
        number(step.goodput),
        f"{step.rates['attainment']:.0%}",
        number(step.rates["output_tokens_per_s"]),
        *(number(figure.value) for figure in (ttft["p50"], ttft["p99"], itl["p99"])),
        f"{step.rates['sheds']:.1%}",
        f"{step.rates['errors']:.1%}",
    )
