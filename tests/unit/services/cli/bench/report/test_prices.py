"""The cost of a load, and files of prices that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.bench.report import prices as prices_module
from services.cli.bench.report.prices import Prices
from services.cli.bench.targets.target import CallOutcome
from shared.errors import InvalidRequest
from tests.unit.services.cli.bench.records import call_record


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return path


def test_tokens_and_hours_are_paid_for(tmp_path: Path) -> None:
    text = """
    input_per_million = 2
    cached_input_per_million = 0.5
    output_per_million = 10
    machine_per_hour = 36
    currency = "EUR"
    """
    records = [call_record(cached_tokens=40), call_record(cached_tokens=0, outcome=CallOutcome.FAILED)]
    cost = Prices.of(written(tmp_path, text)).cost_of(records, seconds=10.0)
    total = 160 * 2e-6 + 40 * 0.5e-6 + 6 * 10e-6 + 0.1
    assert cost.total == pytest.approx(total)
    assert cost.per_request == pytest.approx(total)  # one of the two has finished
    assert cost.per_million_tokens == pytest.approx(total / 206 * 1e6)
    assert cost.per_million_output_tokens == pytest.approx(total / 6 * 1e6)
    assert cost.currency == "EUR"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "is no TOML"),
        ("a = " + "[" * 10_000, "is no TOML"),
        ("", "has no price"),
        ("output_per_million = 0", "has no price"),
        ("output = 1", "there is no price 'output'; there are input_per_million"),
        ('output_per_million = "x"', "output_per_million is 'x'; it is a number of 0 or more"),
        ("output_per_million = -1", "output_per_million is -1"),
        ("output_per_million = nan", "output_per_million is nan"),
        ("output_per_million = true", "output_per_million is True"),
        ("currency = 5\noutput_per_million = 1", "currency is 5"),
    ],
)
def test_a_file_that_has_no_prices_is_refused_with_its_field(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match="prices") as raised:
        Prices.of(written(tmp_path, text))
    assert says in str(raised.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Prices.of(tmp_path / "none.toml")


def test_a_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "output_per_million = 25")
    monkeypatch.setattr(prices_module, "MAX_PRICES_BYTES", path.stat().st_size)
    assert Prices.of(path).output_per_million == 25
    monkeypatch.setattr(prices_module, "MAX_PRICES_BYTES", path.stat().st_size - 1)
    with pytest.raises(InvalidRequest, match="larger than"):
        Prices.of(path)
