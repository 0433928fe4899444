"""One HTML page with all that is said of a load: dark where the reader's screen is, and narrow ones fit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.report.load_summary import LoadSummary
from services.cli.bench.report.load_words import summary_words, sweep_words
from services.cli.bench.report.plots import PlotCurve, distribution, plot
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.rate_sweep import SweepResult

STYLE = """
:root { color-scheme: light dark; --c0: #1565c0; --c1: #c62828; --c2: #2e7d32; --line: #8884; }
@media (prefers-color-scheme: dark) { :root { --c0: #64b5f6; --c1: #ef9a9a; --c2: #81c784; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
pre { overflow-x: auto; font-size: 12.5px; padding: .8rem; }
pre { border: 1px solid var(--line); border-radius: 6px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
figcaption { font-weight: 600; }
svg { width: 100%; height: auto; }
svg text { font-size: 9px; fill: currentColor; }
svg line { stroke: var(--line); }
polyline { fill: none; stroke-width: 1.6; }
polyline.c0 { stroke: var(--c0); } polyline.c1 { stroke: var(--c1); } polyline.c2 { stroke: var(--c2); }
circle.c0 { fill: var(--c0); } circle.c1 { fill: var(--c1); } circle.c2 { fill: var(--c2); }
.names span { margin-right: 1em; font-size: 13px; }
span.c0 { color: var(--c0); } span.c1 { color: var(--c1); } span.c2 { color: var(--c2); }
"""


def load_page(title: str, context: Sequence[str], summary: LoadSummary, records: Sequence[CallRecord]) -> str:
    """Return the page of one load; `context` are lines on what was measured, where and how."""
    return _page(title, context, [summary_words(summary)], _load_plots(records))


def sweep_page(title: str, context: Sequence[str], sweep: SweepResult[LoadSummary]) -> str:
    words = [sweep_words(sweep)]
    words += [f"{rate:.3g} requests/s\n\n{summary_words(step)}" for rate, step in sweep.steps]
    return _page(title, context, words, _sweep_plots(sweep))


def _page(title: str, context: Sequence[str], words: Sequence[str], plots: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in context)
    texts = "".join(f"<pre>{escape(text)}</pre>" for text in words)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><ul>{lines}</ul><div class="plots">{"".join(plots)}</div>{texts}'
        "</body></html>\n"
    )


def _load_plots(records: Sequence[CallRecord]) -> list[str]:
    finished = [r for r in records if r.finished and r.conduct is Conduct.WELL]
    others = [r for r in records if not r.finished]
    gaps = [1e3 * gap for record in finished for gap in record.gaps_s]
    return [
        plot(
            *("Until the first token", "ms", "share"),
            [distribution("ttft", [1e3 * record.ttft_s for record in finished])],
            log_x=True,
        ),
        plot("Between deliveries", "ms", "share", [distribution("itl", gaps)], log_x=True),
        plot(
            *("Until the end", "ms", "share"),
            [distribution("e2e", [1e3 * record.total_s for record in finished])],
            log_x=True,
        ),
        plot(
            *("First token over the load", "s since it began", "ms"),
            [PlotCurve("finished", [(r.intended_s, 1e3 * r.ttft_s) for r in finished], dots=True)],
        ),
        plot(
            *("End over the load", "s since it began", "ms"),
            [
                PlotCurve("finished", [(r.intended_s, 1e3 * r.total_s) for r in finished], dots=True),
                PlotCurve("other ends", [(r.intended_s, 1e3 * r.total_s) for r in others], dots=True),
            ],
        ),
        plot(
            *("First token by length", "prompt tokens", "ms"),
            [PlotCurve("ttft", [(r.facts.prompt_tokens, 1e3 * r.ttft_s) for r in finished], dots=True)],
            log_x=True,
        ),
    ]


def _sweep_plots(sweep: SweepResult[LoadSummary]) -> list[str]:
    def curve(name: str, quantity: str, quantile: str) -> PlotCurve:
        return PlotCurve(
            name, [(rate, step.latencies[quantity].quantiles[quantile].value) for rate, step in sweep.steps]
        )

    goodput = PlotCurve("goodput", [(rate, step.goodput) for rate, step in sweep.steps])
    finished = PlotCurve("finished", [(rate, step.rates["requests_per_s"]) for rate, step in sweep.steps])
    tokens = PlotCurve("output", [(rate, step.rates["output_tokens_per_s"]) for rate, step in sweep.steps])
    asked = "requests/s asked"
    return [
        plot("Goodput", asked, "requests/s", [goodput, finished]),
        plot("Output", asked, "tokens/s", [tokens]),
        plot("First token", asked, "ms", [curve("p50", "ttft", "p50"), curve("p99", "ttft", "p99")]),
        plot("Between deliveries", asked, "ms", [curve("p50", "itl", "p50"), curve("p99", "itl", "p99")]),
    ]
