"""The page of limits is that of the code, and every limit is on it or bounds nothing from outside.

With PENSTOCK_WRITE_PAGES=1 the page is written instead of compared.
"""

from __future__ import annotations

import os

from tests.support.data import REPOSITORY
from tests.support.limits_page import (
    OWN,
    OWN_PLACES,
    ROOMS,
    is_own,
    limits_page,
    modules_with_limits,
    room_of,
)

PAGE = REPOSITORY / "shared" / "LIMITS.md"


def test_the_page_has_the_limits_of_the_code() -> None:
    made = limits_page()
    if os.environ.get("PENSTOCK_WRITE_PAGES") == "1":
        PAGE.write_text(made, "utf-8")
    else:
        assert PAGE.read_text("utf-8") == made


def test_every_module_with_a_limit_has_a_room_or_bounds_nothing_from_outside() -> None:
    modules = modules_with_limits()
    assert [path for path in sorted(modules) if not room_of(path) and not is_own(path)] == []


def test_every_place_is_needed() -> None:
    paths = modules_with_limits()
    places = (*OWN_PLACES, *OWN, *(place for room in ROOMS for place in room.places))
    needed = {place for place in places for path in paths if path == place or path.startswith(f"{place}/")}
    assert {*places} - needed == set()
