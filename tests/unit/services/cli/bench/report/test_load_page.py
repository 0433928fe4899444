"""The page and the text of a load: all that is known, and nothing that has to be fetched."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.report.load_page import load_page, sweep_page
from services.cli.bench.report.load_summary import LoadSummary, SummarySettings, summarize
from services.cli.bench.report.load_words import number, summary_words, sweep_words
from services.cli.bench.report.machine import MachineState
from services.cli.bench.report.plots import MOST_POINTS, PlotCurve, distribution, plot
from services.cli.bench.report.prices import Prices
from services.cli.bench.report.service_level import ServiceLevel
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.rate_sweep import SweepResult
from services.cli.bench.targets.target import CallOutcome
from tests.unit.services.cli.bench.records import QUIET, call_record


class Pages(HTMLParser):
    """Fails where tags do not close in order, and notes what would be fetched."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Neither opens nor closes anything."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def summary(count: int = 50) -> tuple[LoadSummary, LoadResult]:
    records = [
        call_record(n, at_s=n / 10, ttft_s=0.1 + n / 1000, phases_ms={"decode": 5.0}) for n in range(count)
    ]
    records.append(
        call_record(count, conduct=Conduct.CANCEL, outcome=CallOutcome.GAVE_UP, kind="<b>cancel</b>")
    )
    result = LoadResult(records, QUIET)
    levels = [ServiceLevel.read("ttft_p50<1s"), ServiceLevel.read("errors<1%")]
    settings = SummarySettings(0.0, 4.0, levels, Prices(output_per_million=5.0, currency="EUR"))
    return summarize(result, settings), result


def test_a_page_is_whole_by_itself_and_has_the_figures() -> None:
    figures, result = summary()
    page = load_page("a <model> under load", ["gRPC & more"], figures, result.records)
    assert Pages(page).fetched == []
    assert not re.search(r"@import|url\(|<script|<link", page)
    assert "a &lt;model&gt; under load" in page
    assert "<b>cancel" not in page
    assert page.count("<svg") == 6
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert all(line.strip() in page.replace("&lt;", "<") for line in summary_words(figures).splitlines()[:3])


def test_a_sweep_s_page_has_its_curves() -> None:
    figures, _ = summary()
    sweep = SweepResult([(1.0, figures), (2.0, figures), (4.0, figures)], knee=0, reached=True)
    page = sweep_page("swept", [], sweep)
    assert Pages(page).fetched == []
    assert page.count("<svg") == 4
    assert "goodput grew up to 1 requests/s, and no more beyond" in sweep_words(sweep)
    assert "sweep further" in sweep_words(SweepResult([(1.0, figures)], knee=0, reached=False))
    nothing = SweepResult([(1.0, figures), (2.0, figures)], knee=None, reached=False)
    assert "no call met its objectives at any rate; the figures are of 2 requests/s" in sweep_words(nothing)


def test_a_load_of_nothing_has_a_page_too() -> None:
    figures = summarize(LoadResult([], QUIET), SummarySettings(0.0, 4.0))
    page = load_page("nothing", [], figures, [])
    assert Pages(page).fetched == []
    assert "no call counts" in page


def test_the_text_says_figures_with_their_intervals() -> None:
    words = summary_words(summary()[0])
    assert re.search(r"^ttft +50 +12[45] +124 ", words, re.MULTILINE)
    assert re.search(r"^ +95 % +1\d\d\.\.1\d\d ", words, re.MULTILINE)
    assert re.search(r"1\d\d or more", words)
    assert re.search(r"^decode +50 +5 ", words, re.MULTILINE)
    assert re.search(r"^kept +ttft_p50<1s: 124 ms$", words, re.MULTILINE)
    assert re.search(r"^kept +errors<1%: 0%$", words, re.MULTILINE)
    assert re.search(r"^cost: 0\.\d+ EUR", words, re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.2345, "1.23"), (1234.5, "1234"), (math.nan, "-"), (99.96, "100")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_curve_has_its_points_where_they_belong() -> None:
    drawn = plot("t", "x", "y", [PlotCurve("c", [(0.0, 0.0), (10.0, 10.0), (math.nan, 1.0)])])
    (points,) = re.findall(r'points="([^"]*)"', drawn)
    assert points == "46.0,186.0 350.0,8.0"
    assert 'points="46.0,' in plot("t", "x", "y", [PlotCurve("c", [(7.0, 0.0)])])
    assert plot("t", "x", "y", [PlotCurve("c", [(0.0, 1.0)])], log_x=True) == ""
    assert plot("t", "x", "y", [PlotCurve("c", [(3.0, 1.0)])], log_x=True) != ""


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    curve = distribution("d", [float(n) for n in range(1, 5001)])
    (points,) = re.findall(r'points="([^"]*)"', plot("t", "x", "y", [curve], log_x=True))
    places = points.split()
    assert len(places) == MOST_POINTS
    assert (places[0].split(",")[0], places[-1]) == ("46.0", "350.0,8.0")


def test_a_busy_machine_is_told() -> None:
    assert MachineState("cpu", 2, 2.0).warnings() == []
    assert "load average 2.1 on 2 cores" in MachineState("cpu", 2, 2.1).warnings()[0]
    now = MachineState.now()
    assert now.cores >= 1
    assert now.processor in now.words()


def test_large_numbers_of_an_axis_are_written_out() -> None:
    drawn = plot("t", "x", "y", [PlotCurve("c", [(0.0, 0.0), (40_000.0, 1000.0)])])
    assert re.findall(r">([\d.e+]+)</text>", drawn) == [
        *("0", "10000", "20000", "30000", "40000"),
        *("0", "250", "500", "750", "1000"),
    ]
