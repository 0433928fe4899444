"""A keeper that was wrongly taken for dead has its key again, with what was used of it meanwhile."""

from __future__ import annotations

import pytest

from services.gateway.keys.key_account import KeyAccount
from services.gateway.keys.rate_bucket import MINUTE_S, RateBucket
from services.gateway.keys.rate_limits import KeyLedger
from shared.files.api_key_file import ApiKey, KeyLimits
from tests.support.clock import FakeClock

LIMITS = KeyLimits(requests_per_min=60, tokens_per_min=600)
KEEPER, LIFE = "gateway-9", 5


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def account(clock: FakeClock) -> KeyAccount:
    return KeyAccount("hash", KeyLedger(ApiKey("web", "acme", "hash", limits=LIMITS), clock))


def test_what_was_taken_since_the_doubt_is_told_less_what_was_given_back(
    account: KeyAccount, clock: FakeClock
) -> None:
    account.ledger.begin([("gateway-0", 1)], [100])
    account.doubt_keeper(KEEPER, LIFE)
    assert account.ledger.levels() == (0.0, 0.0)
    clock.advance(10.0)
    account.ledger.begin([("gateway-0", 2)], [60])
    account.ledger.settle(("gateway-0", 2), tokens=-20, requests=0, ended=True)
    account.ledger.settle(("gateway-0", 1), tokens=-70, requests=0, ended=True)
    assert account.hand_back(KEEPER, LIFE) == (1.0, -30.0)
    assert not account.kept
    assert account.hand_back(KEEPER, LIFE) is None


@pytest.mark.parametrize(
    "doubts",
    [
        [],
        [(KEEPER, LIFE + 1)],
        [(KEEPER, None)],
        [("gateway-8", LIFE)],
        [(KEEPER, LIFE), ("gateway-8", LIFE)],
        [(KEEPER, LIFE), (KEEPER, None)],
    ],
)
def test_a_key_is_handed_back_to_the_one_that_was_doubted_alone_in_the_same_life(
    account: KeyAccount, doubts: list[tuple[str, int | None]]
) -> None:
    for name, incarnation in doubts:
        account.doubt_keeper(name, incarnation)
    assert account.hand_back(KEEPER, LIFE) is None


@pytest.mark.parametrize(("passed_s", "alone"), [(MINUTE_S - 0.1, False), (MINUTE_S, True)])
def test_a_doubt_counts_for_a_minute_beside_a_later_one(
    account: KeyAccount, clock: FakeClock, passed_s: float, alone: bool
) -> None:
    account.doubt_keeper("gateway-8", LIFE)
    clock.advance(passed_s)
    account.doubt_keeper(KEEPER, LIFE)
    assert (account.hand_back(KEEPER, LIFE) is not None) == alone


def test_one_that_comes_between_leaves_the_doubt_and_the_doubted_one_ends_it(account: KeyAccount) -> None:
    account.doubt_keeper(KEEPER, LIFE)
    account.hand_over("gateway-7")
    assert account.holds_back_for(KEEPER)
    account.hand_over(KEEPER)
    assert not account.holds_back_for(KEEPER)


def test_the_ledger_holds_nothing_back_any_more_once_the_keeper_counts(
    account: KeyAccount, clock: FakeClock
) -> None:
    account.ledger.begin([("gateway-0", number) for number in range(30)], [10] * 30)
    account.doubt_keeper(KEEPER, LIFE)
    clock.advance(6.0)
    assert account.hand_back(KEEPER, LIFE) == (0.0, 0.0)
    account.hear_count("gateway-7")
    assert account.ledger.levels() == (6.0, 60.0)
    assert account.holds_back_for(KEEPER)
    account.hear_count(KEEPER)
    assert account.ledger.levels() == (36.0, 360.0)
    assert not account.holds_back_for(KEEPER)


def test_a_keeper_that_is_lost_again_gives_nothing_back(account: KeyAccount) -> None:
    account.doubt_keeper(KEEPER, LIFE)
    account.hand_back(KEEPER, LIFE)
    account.lose(KEEPER)
    account.hear_count(KEEPER)
    assert account.ledger.levels() == (0.0, 0.0)


def test_a_bucket_is_refilled_to_what_it_would_hold_and_never_less_than_it_does(clock: FakeClock) -> None:
    bucket = RateBucket(60, clock)
    since_s = clock.monotonic_s()
    bucket.lower(0.0)
    clock.advance(5.0)
    bucket.refill(10.0, since_s)
    assert bucket.level == 15.0
    bucket.refill(3.0, since_s)
    assert bucket.level == 15.0
    bucket.refill(59.0, since_s)
    assert bucket.level == 60.0
    bucket.take(7.0)
    bucket.take(-2.0)
    assert bucket.taken == 5.0
