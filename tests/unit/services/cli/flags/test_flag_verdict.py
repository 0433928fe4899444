"""Those who have a change against those who might have it: in slices of time, by pairs."""

from __future__ import annotations

import pytest

from services.cli.flags.flag_verdict import flag_verdict, flag_verdict_words
from shared.messages import FlagTrafficRow
from tests.support.flag_changes import flag_change

CHANGE = flag_change(1, share=0.2)
ITS = (CHANGE.version,)


def row(
    number: int, ttft_us: int, flags: tuple[str, ...] = (), outcome: str = "finished", tenant: str = "acme"
) -> FlagTrafficRow:
    began_us = CHANGE.made_unix_us + 1000 * number
    return FlagTrafficRow(tenant, "m", outcome, began_us, ttft_us, 3 * ttft_us, 11, flags)


def rows(factor: float, count: int = 200) -> list[FlagTrafficRow]:
    """The load rises tenfold meanwhile; every fifth request has the change."""
    made = []
    for number in range(count):
        usual_us = 10_000 * (1 + 9 * number / count) * (1 + (number * 7919 % 13) / 100)
        has = number % 5 == 0
        made.append(row(number, round(usual_us * (factor if has else 1.0)), ITS if has else ()))
    return made


@pytest.mark.parametrize("metric", ["ttft", "tpot", "total"])
def test_a_difference_is_found_while_the_load_rises(metric: str) -> None:
    verdict = flag_verdict(CHANGE, rows(1.3), metric)
    assert (verdict.requests, verdict.failed) == ((160, 40), (0, 0))
    assert verdict.comparison is not None
    assert verdict.comparison.low > 1.15
    assert verdict.comparison.high < 1.45
    assert f"B is slower: its {metric} is 1." in flag_verdict_words(verdict, CHANGE, metric)[1]


def test_where_there_is_none_none_is_shown() -> None:
    words = flag_verdict_words(flag_verdict(CHANGE, rows(1.0), "ttft"), CHANGE, "ttft")
    assert words[1].startswith("no difference shown at 13 pairs")


def test_requests_before_the_change_and_of_others_do_not_count() -> None:
    change = flag_change(1, tenant="acme", share=0.2)
    early = row(-1, 1000)
    other = row(3, 1000, tenant="globex")
    assert flag_verdict(change, [early, other, row(3, 1000), row(4, 0, ITS, "failed")], "ttft").requests == (
        1,
        1,
    )
    assert flag_verdict(change, [row(4, 0, ITS, "failed")], "ttft").failed == (0, 1)


def test_too_few_requests_have_no_verdict_and_of_everybody_neither() -> None:
    few = flag_verdict_words(flag_verdict(CHANGE, rows(2.0, 60), "ttft"), CHANGE, "ttft")
    assert few[1] == "too few for a verdict: it takes about 18 answered requests of each side"
    everybody = flag_change(1)
    words = flag_verdict_words(flag_verdict(everybody, [row(1, 5, ITS)], "ttft"), everybody, "ttft")
    assert "nobody to compare with" in words[1]
