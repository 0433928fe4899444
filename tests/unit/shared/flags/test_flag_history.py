"""Changes of settings are a set: whoever hears of them in whatever order knows the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest, NotFound
from shared.flags.flag_history import (
    MAX_FLAG_CHANGES,
    MAX_FLAG_NUMBER,
    MAX_REASON_CHARS,
    FlagHistory,
    change_problem,
)
from shared.messages import FlagChange
from tests.support.flag_changes import MADE_US, flag_change

NOW_US = MADE_US + 10_000


def history(*changes: FlagChange) -> FlagHistory:
    return FlagHistory().united(changes)


def in_force(known: FlagHistory, now_us: int = NOW_US) -> list[str]:
    return [change.version for change in known.in_force(now_us)]


CHANGES = st.builds(
    lambda number, origin, ended: flag_change(number, origin, **({"rolls_back": ended} if ended else {})),
    st.integers(1, 6),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "", "1@a", "2@b", "9@x"]),
)


@settings(max_examples=25)
@given(st.lists(CHANGES, max_size=6), st.lists(CHANGES, max_size=6), st.lists(CHANGES, max_size=6))
def test_histories_unite_to_the_same_whatever_the_order(
    first: list[FlagChange], second: list[FlagChange], third: list[FlagChange]
) -> None:
    made = {change.version: change for change in [*first, *second, *third]}  # one change a version
    a, b, c = (history(*(made[each.version] for each in some)) for some in (first, second, third))
    left = a.united(b.changes).united(c.changes)
    right = c.united(a.changes).united(b.changes).united(a.changes)
    assert left == right == history(*made.values())
    assert left.digest == right.digest


def test_the_more_specific_change_counts_first_and_then_the_newer_one() -> None:
    known = history(
        flag_change(1, tenant="acme", model="m"),
        flag_change(2, tenant="acme"),
        flag_change(3),
        flag_change(4),
        flag_change(5, share=0.5),
    )
    assert in_force(known) == ["1@gateway-0", "5@gateway-0", "2@gateway-0", "4@gateway-0", "3@gateway-0"]


def test_a_change_is_over_when_it_is_rolled_back_or_its_time_is_up() -> None:
    known = history(
        flag_change(1),
        flag_change(2, ends_unix_us=NOW_US),
        flag_change(3),
        flag_change(4, rolls_back="1@gateway-0"),
    )
    assert in_force(known, NOW_US - 1) == ["3@gateway-0", "2@gateway-0"]
    assert in_force(known, NOW_US) == ["3@gateway-0"]
    assert [change.number for change in known.as_of(3)] == [3, 2, 1]


def test_what_is_over_is_forgotten_when_there_is_too_much_and_nobody_brings_it_back() -> None:
    old = [flag_change(1, tenant="kept"), flag_change(2), flag_change(3, rolls_back="2@gateway-0")]
    more = [
        flag_change(4 + at, rolls_back=f"{3 + at}@gateway-0") if at % 2 else flag_change(4 + at)
        for at in range(MAX_FLAG_CHANGES)
    ]
    known = history(*old, *more)
    assert len(known.changes) == MAX_FLAG_CHANGES
    assert in_force(known) == ["1@gateway-0"]
    assert known.forgotten > 2
    away = history(flag_change(1, tenant="kept"), flag_change(2))  # it has never heard of the rollback
    assert in_force(away.united(known.changes, known.forgotten)) == ["1@gateway-0"]
    assert in_force(known.united(away.changes, away.forgotten)) == ["1@gateway-0"]


def test_a_number_that_two_gateways_gave_needs_its_origin() -> None:
    known = history(flag_change(1, "a"), flag_change(1, "b"), flag_change(2, "a"))
    assert known.next_number == 3
    assert known.find("2").version == "2@a"
    assert known.find("1@b").origin == "b"
    with pytest.raises(InvalidRequest, match="several changes: send one of 1@a, 1@b"):
        known.find("1")
    with pytest.raises(NotFound, match="no change '7'"):
        known.find("7")


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"reason": "x" * (MAX_REASON_CHARS + 1)}, "reason has 301 characters"),
        ({"share": 0.0}, "share is 0"),
        ({"share": float("nan")}, "share is nan"),
        ({"setting": "", "value": ""}, "set something or roll"),
        ({"setting": "rerank", "rolls_back": "1@a"}, "set something or roll"),
        ({"number": 0}, "no number or origin"),
        ({"number": MAX_FLAG_NUMBER + 1}, "no number or origin"),
        ({"ends_unix_us": MAX_FLAG_NUMBER + 1}, "at no time"),
    ],
)
def test_a_change_that_cannot_be_one_says_what_is_wrong(said: dict[str, object], problem: str) -> None:
    assert problem in change_problem(flag_change(**said))  # type: ignore[arg-type]
    assert change_problem(flag_change(reason="x" * MAX_REASON_CHARS)) == ""
