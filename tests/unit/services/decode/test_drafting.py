"""A step tells who has made the drafts that it verified."""

from __future__ import annotations

from services.decode.drafting import drafted_by
from shared.engine import TokenOutput


def test_drafts_are_counted_for_who_made_them() -> None:
    output = TokenOutput("a", 5, (1,), (), None, 1, 2)
    assert drafted_by(output) == "speculator"
    assert drafted_by(output._replace(looked_up=True)) == "lookup"
    assert drafted_by(output._replace(from_head=True)) == "head"
