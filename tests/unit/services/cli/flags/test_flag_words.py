"""Changes in words and tables."""

from __future__ import annotations

from services.cli.flags.blast_radius import BlastRadius, TenantLoad
from services.cli.flags.flag_words import (
    diff_lines,
    history_table,
    in_force_table,
    radius_lines,
    settings_table,
)
from shared.flags.flag_history import FlagHistory
from shared.messages import FlagSetting
from tests.support.flag_changes import MADE_US, flag_change

TRIAL = flag_change(1, tenant="acme", share=0.05, guard="errors<1%", ends_unix_us=MADE_US + 3_600_000_000)
SETTING = FlagSetting("local_prefill_tokens", "512", "a whole number", "most uncached tokens")


def test_what_is_in_force_is_shown_beside_what_is_usual() -> None:
    shown = in_force_table([TRIAL], {SETTING.name: SETTING})
    assert (
        "local_prefill_tokens=0  512    5% of tenant acme  2023-11-14 22:13:20Z  2023-11-14 23:13:20Z"
        in shown
    )
    assert in_force_table([], {}) == "nothing is changed"


def test_the_history_says_how_each_change_ended() -> None:
    known = FlagHistory().united(
        [
            TRIAL,
            flag_change(2),
            flag_change(3, rolls_back="2@gateway-0"),
            flag_change(4, ends_unix_us=MADE_US + 5),
        ]
    )
    lines = history_table(known, MADE_US + 1000).splitlines()
    assert "in force" in lines[1]
    assert "rolled back by 3@gateway-0" in lines[2]
    assert "rolls back 2@gateway-0" in lines[3]
    assert "its time was up" in lines[4]
    assert history_table(FlagHistory(), 0) == "nothing was ever changed"


def test_a_difference_has_what_is_gone_and_what_has_come() -> None:
    lines = diff_lines([TRIAL, flag_change(2)], [flag_change(2), flag_change(5, value="9")])
    assert lines == [
        "- local_prefill_tokens=0 for 5% of tenant acme: 1@gateway-0, a test",
        "+ local_prefill_tokens=9 for all: 5@gateway-0, a test",
    ]
    assert diff_lines([TRIAL], [TRIAL]) == ["no difference"]


def test_whom_it_reaches_is_said_in_sentences() -> None:
    radius = BlastRadius((TenantLoad("acme", 12.0, 80.0, 200.0, 1),), 18.0, 2, ("7@gateway-1",))
    lines = radius_lines(TRIAL, radius, "512")
    assert lines[0] == "local_prefill_tokens=0 in place of 512, for 5% of tenant acme"
    assert lines[1].splitlines()[1].split() == ["acme", "12.0", "80", "200", "1"]
    assert lines[2:] == [
        "it reaches about 0.6 of 18.0 requests a minute, at 2 gateways",
        "7@gateway-1 set the same for some of them: the most specific counts",
    ]
    nobody = radius_lines(TRIAL, BlastRadius((), 0.0, 1, ()), "")
    assert "in place of nothing" in nobody[0]
    assert nobody[1] == "none of the last minutes' requests was of that kind"


def test_what_can_be_set_is_a_table() -> None:
    assert settings_table([SETTING]).splitlines()[1].split()[:2] == ["local_prefill_tokens", "512"]
