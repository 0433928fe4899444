"""Which requests a change is for, and who is in its share."""

from __future__ import annotations

import pytest

from shared.flags.flag_match import is_for, is_in_share
from tests.support.flag_changes import flag_change

UNITS = [f"acme\0session {number}" for number in range(4000)]


@pytest.mark.parametrize(
    ("tenant", "model", "holds"),
    [
        ("", "", True),
        ("acme", "", True),
        ("globex", "", False),
        ("", "small", True),
        ("", "org/small", True),
        ("", "small:legal", True),
        ("", "large", False),
        ("acme", "large", False),
    ],
)
def test_a_change_is_for_a_tenant_and_a_model(tenant: str, model: str, holds: bool) -> None:
    change = flag_change(tenant=tenant, model=model)
    assert is_for(change, "acme", "org/small:legal") is holds


def test_a_share_is_as_large_as_it_says_and_grows_without_leaving_anybody_out() -> None:
    small, large = flag_change(share=0.05), flag_change(9, "gateway-7", share=0.1)
    in_small = {unit for unit in UNITS if is_in_share(small, unit)}
    in_large = {unit for unit in UNITS if is_in_share(large, unit)}
    assert 0.03 < len(in_small) / len(UNITS) < 0.07
    assert 0.08 < len(in_large) / len(UNITS) < 0.12
    assert in_small < in_large


def test_shares_of_different_values_are_drawn_apart() -> None:
    first, second = flag_change(share=0.5), flag_change(share=0.5, value="64")
    both = sum(is_in_share(first, unit) and is_in_share(second, unit) for unit in UNITS)
    assert 0.2 < both / len(UNITS) < 0.3


def test_all_is_everybody() -> None:
    assert all(is_in_share(flag_change(), unit) for unit in UNITS[:50])
