"""When a stream is notably better off at another decode worker than at its own, which goes on."""

from __future__ import annotations

import pytest

from services.gateway.fleet.relief import KEPT_FREE_SHARE, MANY_REQUESTS, STEP_RATIO, relieves
from shared.messages import LONG_STEPS, SHORT_OF_BLOCKS, Heartbeat
from tests.support.heartbeats import make_heartbeat

BLOCKS = 80
KEPT = BLOCKS // KEPT_FREE_SHARE


def beat(
    live: int = 0, *, free: int = BLOCKS, step_us: int = 0, queued: int = 0, host: str = "a"
) -> Heartbeat:
    return make_heartbeat(
        "decode",
        "decode-0",
        capacity=8,
        live=live,
        queued=queued,
        host=host,
        kv_blocks=BLOCKS,
        kv_blocks_free=free,
        step_us=step_us,
    )


@pytest.mark.parametrize(("free", "relief"), [(KEPT + 5, True), (KEPT + 4, False)])
def test_who_takes_a_stream_keeps_blocks_free(free: int, relief: bool) -> None:
    assert relieves(SHORT_OF_BLOCKS, beat(8, free=0), beat(7, free=free), 5) is relief


def test_a_worker_whose_places_are_taken_relieves_nobody() -> None:
    assert not relieves(SHORT_OF_BLOCKS, beat(8, free=0), beat(6, queued=2), 5)
    assert not relieves(LONG_STEPS, beat(10, step_us=1000), beat(8, step_us=1), 5)


@pytest.mark.parametrize(("step_us", "relief"), [(1000 * STEP_RATIO + 1, True), (1000 * STEP_RATIO, False)])
def test_steps_are_long_where_those_of_another_take_much_less(step_us: float, relief: bool) -> None:
    assert relieves(LONG_STEPS, beat(4, step_us=int(step_us)), beat(2, step_us=1000), 5) is relief


def test_a_slow_worker_with_as_few_requests_keeps_them() -> None:
    assert not relieves(LONG_STEPS, beat(3, step_us=9000), beat(1, queued=1, step_us=1000), 5)


@pytest.mark.parametrize(
    ("live", "host", "relief"),
    [(MANY_REQUESTS, "b", True), (MANY_REQUESTS - 1, "b", False), (MANY_REQUESTS, "a", False)],
)
def test_a_worker_without_streams_on_another_host_gets_one_to_see_how_fast_it_is(
    live: int, host: str, relief: bool
) -> None:
    assert relieves(LONG_STEPS, beat(live, step_us=1000, host="a"), beat(host=host), 5) is relief


def test_a_relief_that_is_not_known_is_found_nowhere() -> None:
    assert not relieves("warmth", beat(8, free=0, step_us=9000), beat(1, step_us=1), 5)
