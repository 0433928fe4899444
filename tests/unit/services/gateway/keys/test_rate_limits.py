"""What a key may use, at the edges of its limits, on a clock that stands still."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.keys.allowance import Allowance
from services.gateway.keys.rate_limits import KeyLedger, LimitReached
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.report import count_outcome
from shared.errors import TooLarge
from shared.files.api_key_file import ApiKey, KeyLimits
from tests.support import metric
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def key(
    requests_per_min: int | None = None, concurrency: int | None = None, tokens: int | None = None
) -> ApiKey:
    return ApiKey("web", "acme", "sha256:0", KeyLimits(requests_per_min, concurrency, tokens))


@dataclass(frozen=True, slots=True)
class Uses:
    """The uses of one ledger, settled where they were begun."""

    ledger: KeyLedger

    def check_size(self, tokens: int) -> None:
        self.ledger.check_size(tokens)

    def settle(self, use: int, *, tokens: int, requests: int = 0, ended: bool) -> None:
        self.ledger.settle(("here", use), tokens=tokens, requests=requests, ended=ended)


numbers = itertools.count()


def admit(ledger: KeyLedger, prompt_tokens: int = 10, max_tokens: int = 10, exact: bool = True) -> Allowance:
    ledger.check_size(max_tokens + (prompt_tokens if exact else 1))
    use, reserved = next(numbers), ledger.reserved(prompt_tokens + max_tokens)
    ledger.begin([("here", use)], [reserved])
    return Allowance(Uses(ledger), use, reserved, max_tokens)


def refused(ledger: KeyLedger, prompt_tokens: int = 10, max_tokens: int = 10) -> LimitReached:
    with pytest.raises(LimitReached) as caught:
        admit(ledger, prompt_tokens, max_tokens)
    return caught.value


def test_without_limits_everything_is_admitted(clock: FakeClock) -> None:
    ledger = KeyLedger(key(), clock)
    for _ in range(1000):
        admit(ledger, 10**6, 10**6)
    assert ledger.live == 1000


def test_what_a_limit_refuses_is_counted_as_the_keys_doing(clock: FakeClock) -> None:
    ledger = KeyLedger(key(concurrency=1), clock)
    admit(ledger)
    error = refused(ledger)
    before = metric.value("penstock_shed_total", hop="gateway", reason="key")
    count_outcome(Outcome.of(error))
    assert metric.value("penstock_shed_total", hop="gateway", reason="key") == before + 1


# ---- requests per minute -----------------------------------------------------------------------------


def test_a_minute_of_requests_may_come_at_once_and_not_one_more(clock: FakeClock) -> None:
    ledger = KeyLedger(key(requests_per_min=60), clock)
    for _ in range(60):
        admit(ledger).charge(0)
    error = refused(ledger)
    assert (error.limit, error.retry_after_ms, error.code) == ("requests_per_min", 1000, "overloaded")
    assert "the key web has requests_per_min = 60" in str(error)


@pytest.mark.parametrize("per_min", [1, 7, 60, 600, 1_000_000])
def test_who_waits_as_long_as_told_is_admitted_and_who_waits_less_is_not(
    per_min: int, clock: FakeClock
) -> None:
    ledger = KeyLedger(key(requests_per_min=per_min), clock)
    ledger._requests.take(per_min)  # type: ignore[union-attr]  # it has one
    wait_ms = refused(ledger).retry_after_ms
    clock.advance(60 / per_min * 0.99)
    refused(ledger)
    clock.advance(wait_ms / 1000 - 60 / per_min * 0.99)
    admit(ledger)


def test_an_idle_key_saves_up_no_more_than_a_minute(clock: FakeClock) -> None:
    ledger = KeyLedger(key(requests_per_min=2), clock)
    clock.advance(3600)
    admit(ledger), admit(ledger)
    assert refused(ledger).limit == "requests_per_min"


def test_a_request_that_the_gateway_had_no_room_for_is_not_counted(clock: FakeClock) -> None:
    ledger = KeyLedger(key(requests_per_min=1, concurrency=1, tokens=20), clock)
    for _ in range(5):
        admit(ledger).undo()
    admit(ledger)


def test_a_request_that_was_refused_for_what_it_asks_is_one_of_the_minute(clock: FakeClock) -> None:
    ledger = KeyLedger(key(requests_per_min=2), clock)
    ledger.check_rate()
    ledger.count_refused()
    ledger.count_refused()
    with pytest.raises(LimitReached, match="requests_per_min = 2"):
        ledger.check_rate()
    clock.advance(30.0)
    ledger.check_rate()


def test_a_refused_request_takes_nothing_of_any_limit(clock: FakeClock) -> None:
    ledger = KeyLedger(key(requests_per_min=2, concurrency=1, tokens=100), clock)
    live = admit(ledger)
    for _ in range(10):
        assert refused(ledger).limit == "concurrency"
    live.charge(20)
    assert refused(ledger, 90, 10).limit == "tokens_per_min"
    admit(ledger, 70, 10)


# ---- concurrency ----------------------------------------------------------------------------------


def test_as_many_as_allowed_are_live_at_a_time_and_an_end_makes_room(clock: FakeClock) -> None:
    ledger = KeyLedger(key(concurrency=2), clock)
    first, _ = admit(ledger), admit(ledger)
    assert refused(ledger).limit == "concurrency"
    first.charge(0)
    admit(ledger)
    assert refused(ledger).limit == "concurrency"


def test_an_allowance_ends_once(clock: FakeClock) -> None:
    ledger = KeyLedger(key(concurrency=2, tokens=100), clock)
    first, _ = admit(ledger), admit(ledger)
    for _ in range(3):
        first.charge(0)
        first.undo()
    assert ledger.live == 1
    admit(ledger, 70, 10)
    assert refused(ledger, 1, 1).limit == "concurrency"


def test_the_hint_for_concurrency_comes_from_how_long_requests_take(clock: FakeClock) -> None:
    ledger = KeyLedger(key(concurrency=4), clock)
    first = admit(ledger)
    clock.advance(8.0)
    first.charge(0)
    for _ in range(4):
        admit(ledger)
    assert refused(ledger).retry_after_ms == 2000


# ---- tokens per minute ------------------------------------------------------------------------------


def test_what_may_be_used_is_reserved_and_what_was_not_is_given_back(clock: FakeClock) -> None:
    ledger = KeyLedger(key(tokens=1000), clock)
    live = admit(ledger, 100, 800)
    assert refused(ledger, 100, 1).limit == "tokens_per_min"
    live.charge(110)
    admit(ledger, 90, 800).charge(890)
    assert refused(ledger).limit == "tokens_per_min"


def test_the_hint_for_tokens_is_when_enough_are_there(clock: FakeClock) -> None:
    ledger = KeyLedger(key(tokens=600), clock)
    admit(ledger, 300, 300)
    error = refused(ledger, 50, 50)
    assert error.retry_after_ms == 10_000
    clock.advance(9.99)
    refused(ledger, 50, 50)
    clock.advance(0.01)
    admit(ledger, 50, 50)


def test_a_request_of_exactly_the_limit_fits_and_a_greater_one_never_does(clock: FakeClock) -> None:
    ledger = KeyLedger(key(tokens=100), clock)
    with pytest.raises(TooLarge, match=r"101 tokens or more and the key web has tokens_per_min = 100"):
        admit(ledger, 51, 50)
    admit(ledger, 50, 50)


def test_a_guessed_prompt_is_never_too_large_but_its_output_may_be(clock: FakeClock) -> None:
    ledger = KeyLedger(key(tokens=100), clock)
    admit(ledger, 10_000, 50, exact=False).undo()
    with pytest.raises(TooLarge):
        admit(ledger, 0, 100, exact=False)


def test_a_prompt_that_turns_out_longer_is_counted_and_one_that_never_fits_refused(clock: FakeClock) -> None:
    ledger = KeyLedger(key(tokens=100), clock)
    live = admit(ledger, 5, 10, exact=False)
    with pytest.raises(TooLarge, match="tokens_per_min = 100"):
        live.count_prompt(91)
    live.count_prompt(90)
    assert refused(ledger, 1, 1).limit == "tokens_per_min"
    live.charge(0)
    admit(ledger, 50, 50)


def test_what_was_overdrawn_is_waited_for(clock: FakeClock) -> None:
    ledger = KeyLedger(key(tokens=60), clock)
    live = admit(ledger, 1, 29, exact=False)
    other = admit(ledger, 15, 15)
    live.count_prompt(31)
    live.charge(60)
    other.charge(30)
    assert refused(ledger, 1, 1).retry_after_ms == 32_000


# ---- a change of the file -----------------------------------------------------------------------------


def test_a_changed_limit_counts_from_now_on_and_what_was_used_stays_used(clock: FakeClock) -> None:
    ledger = KeyLedger(key(requests_per_min=10, tokens=1000), clock)
    for _ in range(8):
        admit(ledger)
    ledger.change_key(key(requests_per_min=4, concurrency=10, tokens=1000))
    admit(ledger), admit(ledger)
    assert refused(ledger).limit == "concurrency"
    ledger.change_key(key())
    admit(ledger, 10**9, 10**9)


def test_an_allowance_settles_with_what_it_was_taken_from(clock: FakeClock) -> None:
    ledger = KeyLedger(key(), clock)
    live = admit(ledger, 500, 500)
    ledger.change_key(key(tokens=100))
    admit(ledger, 50, 50)
    live.charge(0)
    assert refused(ledger, 1, 1).limit == "tokens_per_min"


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 120), st.floats(0, 5)), max_size=60
    )
)
def test_in_no_minute_more_is_used_than_two_minutes_worth(steps: list[tuple[int, int, int, float]]) -> None:
    clock = FakeClock(monotonic_s=0.0)
    ledger = KeyLedger(key(requests_per_min=10, tokens=120), clock)
    used: list[tuple[float, int]] = []
    for prompt_tokens, max_tokens, share, pause_s in steps:
        clock.advance(pause_s)
        try:
            live = admit(ledger, prompt_tokens, max_tokens)
        except LimitReached:
            continue
        tokens = min(share, prompt_tokens + max_tokens)
        live.charge(tokens)
        used.append((clock.monotonic_s(), tokens))
    for start_s, _ in used:
        minute = [tokens for at_s, tokens in used if start_s <= at_s <= start_s + 60]
        assert len(minute) <= 20
        assert sum(minute) <= 240
