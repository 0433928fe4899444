from __future__ import annotations

from typing import NamedTuple

from shared.records import maker_of


class Pair(NamedTuple):
    first: int
    second: str = ""


def test_a_record_is_made_of_its_fields() -> None:
    make = maker_of(Pair)
    assert make((1, "a")) == Pair(1, "a")
    assert type(make([2, ""])) is Pair
    assert list(map(make, zip((1, 2), "ab", strict=True))) == [Pair(1, "a"), Pair(2, "b")]
