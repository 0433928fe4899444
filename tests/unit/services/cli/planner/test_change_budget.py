"""The bound on instances that come and go within a minute."""

from __future__ import annotations

from services.cli.planner.change_budget import ChangeBudget, RoleChange


def change(role: str, now: int, wanted: int) -> RoleChange:
    return RoleChange("m", role, now, wanted, "so")


def test_who_comes_is_before_who_goes_and_a_change_is_cut_where_there_is_no_room_for_all_of_it() -> None:
    budget = ChangeBudget(4)
    made, put_off = budget.allowed(0.0, [change("prefill", 5, 3), change("decode", 1, 4)])
    assert [(each.role, each.now, each.wanted) for each in made] == [("decode", 1, 4), ("prefill", 5, 4)]
    assert put_off == [change("prefill", 5, 3)]


def test_the_first_instance_of_a_model_that_rested_always_may_come() -> None:
    budget = ChangeBudget(2)
    budget.spend(0.0, [change("decode", 3, 1)])
    made, put_off = budget.allowed(
        1.0, [change("prefill", 0, 1), change("decode", 0, 2), change("decode", 1, 2)]
    )
    assert [(each.role, each.wanted) for each in made] == [("prefill", 1), ("decode", 1)]
    assert put_off == [change("decode", 0, 2), change("decode", 1, 2)]


def test_what_was_made_counts_for_a_minute() -> None:
    budget = ChangeBudget(2)
    budget.spend(0.0, budget.allowed(0.0, [change("decode", 1, 3)])[0])
    assert budget.allowed(59.0, [change("decode", 3, 4)]) == ([], [change("decode", 3, 4)])
    assert budget.allowed(60.0, [change("decode", 3, 4)]) == ([change("decode", 3, 4)], [])
