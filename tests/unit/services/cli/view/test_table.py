from __future__ import annotations

from services.cli.view.table import cut_to, said_columns, table


def test_a_line_is_cut_with_a_mark_beyond_its_width_alone() -> None:
    assert cut_to("0123", 4) == "0123"
    assert cut_to("01234", 4) == "012…"
    assert cut_to("01", 1) == "…"


def test_columns_in_which_nobody_says_anything_are_left_out() -> None:
    head, rows = said_columns(("a", "b", "c", "d"), [("1", "-", "", ""), ("2", "", "-", "x")])
    assert (head, rows) == (("a", "d"), [("1", ""), ("2", "x")])
    assert table(head, rows) == "a  d\n1\n2  x"
