"""A key keeps to one of the models that share requests, and a changed share moves its own keys alone."""

from __future__ import annotations

from collections import Counter

import pytest

from services.gateway.virtual.model_shares import part_of, pick_share
from shared.files.virtual_model import ModelShare

KEYS = [f"session-{number}" for number in range(4000)]


def picked(**shares: float) -> dict[str, str]:
    of = tuple(ModelShare(model, share) for model, share in shares.items())
    return {key: pick_share(of, "auto", key).model for key in KEYS}


def test_models_get_their_shares_of_keys() -> None:
    counts = Counter(picked(small=70, large=20, canary=10).values())
    parts = {model: count / len(KEYS) for model, count in counts.items()}
    assert parts == pytest.approx({"small": 0.7, "large": 0.2, "canary": 0.1}, abs=0.025)


def test_a_share_that_grows_takes_keys_and_moves_no_other() -> None:
    before, after = picked(small=95, large=40, canary=5), picked(small=95, large=40, canary=15)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {"canary"}
    assert len(moved) / len(KEYS) == pytest.approx(15 / 150 - 5 / 140, abs=0.02)


def test_a_model_with_no_share_gets_no_key_and_one_alone_gets_all() -> None:
    assert set(picked(small=1, canary=0).values()) == {"small"}
    assert set(picked(small=3).values()) == {"small"}


def test_the_canaries_of_two_names_are_not_the_same_keys() -> None:
    shares = (ModelShare("small", 1), ModelShare("canary", 1))
    both = Counter(
        (pick_share(shares, "auto", key).model, pick_share(shares, "fast", key).model) for key in KEYS
    )
    assert min(both.values()) / len(KEYS) == pytest.approx(0.25, abs=0.03)


def test_the_part_of_a_share_is_of_all_shares() -> None:
    shares = (ModelShare("small", 95), ModelShare("canary", 5))
    assert part_of(shares[1], shares) == pytest.approx(0.05)
