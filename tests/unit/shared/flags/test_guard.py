"""Guards: what they say, which requests are bad by them, and when that is no chance any more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.flags.guard import MAX_BOUNDS, RequestTimes, chance_of, parse_guard

LATE = RequestTimes(2000.0, 400.0, 10, "finished")
EARLY = RequestTimes(2000.0, 100.0, 10, "finished")
FAILED = RequestTimes(5.0, None, 0, "failed")


def test_a_guard_says_which_share_may_be_bad() -> None:
    ttft, tpot, errors = parse_guard("p99_ttft<300ms, p50_tpot<0.02s,errors<1%")
    assert (ttft.quantity, ttft.share, ttft.limit_ms) == ("ttft", 0.01, 300.0)
    assert (tpot.quantity, tpot.share, tpot.limit_ms) == ("tpot", 0.5, 20.0)
    assert (errors.quantity, errors.share) == ("errors", 0.01)
    assert parse_guard("") == ()


@pytest.mark.parametrize(
    "text", ["p100_ttft<3ms", "p0_ttft<3ms", "ttft<300ms", "errors<0%", "errors<1", "p99_ttft<300", ","]
)
def test_what_is_no_guard_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write p99_ttft<300ms"):
        parse_guard(text)


def test_so_many_bounds_are_too_many() -> None:
    assert len(parse_guard(",".join(["errors<1%"] * MAX_BOUNDS))) == MAX_BOUNDS
    with pytest.raises(InvalidRequest, match="9 bounds"):
        parse_guard(",".join(["errors<1%"] * (MAX_BOUNDS + 1)))


@pytest.mark.parametrize(
    ("guard", "times", "bad"),
    [
        ("p99_ttft<300ms", LATE, True),
        ("p99_ttft<300ms", EARLY, False),
        ("p99_ttft<300ms", RequestTimes(301.0, None, 0), True),  # still no token
        ("p99_ttft<300ms", RequestTimes(299.0, None, 0), None),
        ("p99_ttft<300ms", FAILED, None),
        ("p99_total<1s", LATE, True),
        ("p99_total<1s", RequestTimes(900.0, 100.0, 4), None),
        ("p99_total<1s", RequestTimes(900.0, 100.0, 4, "finished"), False),
        ("p50_tpot<100ms", EARLY, True),
        ("p50_tpot<300ms", EARLY, False),
        ("p50_tpot<300ms", RequestTimes(900.0, 100.0, 4), None),
        ("errors<1%", FAILED, True),
        ("errors<1%", RequestTimes(5.0, None, 0, "cancelled"), False),
        ("errors<1%", RequestTimes(5.0, None, 0), None),
    ],
)
def test_a_request_is_bad_good_or_not_known(guard: str, times: RequestTimes, bad: bool | None) -> None:
    assert parse_guard(guard)[0].is_bad(times) is bad


@pytest.mark.parametrize(
    ("bad", "good", "burns"), [(1, 0, False), (2, 0, True), (1, 99, False), (3, 197, False), (9, 191, True)]
)
def test_a_guard_burns_where_chance_does_not_explain_it(bad: int, good: int, burns: bool) -> None:
    (bound,) = parse_guard("p99_ttft<300ms")
    why = bound.burns([LATE] * bad + [EARLY] * good + [FAILED] * 5)
    assert why == (f"p99_ttft<300ms burns: {bad} of {bad + good} requests" if burns else "")


@settings(max_examples=30)
@given(st.integers(1, 60), st.floats(0.001, 0.9), st.data())
def test_the_chance_is_that_of_a_binomial(count: int, share: float, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count))
    exact = math.fsum(
        math.comb(count, number) * share**number * (1 - share) ** (count - number)
        for number in range(bad, count + 1)
    )
    assert chance_of(bad, count, share) == pytest.approx(exact, rel=1e-6, abs=1e-12)
