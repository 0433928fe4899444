"""Which streams leave a worker that goes on, and how often one is tried."""

from __future__ import annotations

import pytest

from services.decode.book import DecodeBook
from services.decode.job import DecodeJob
from services.decode.rebalancing import (
    FEWEST_TOKENS_LEFT,
    MANY_STREAMS,
    MAX_REST_S,
    REST_S,
    STAYS_S,
    Rebalancing,
)
from shared.messages import LONG_STEPS, SHORT_OF_BLOCKS
from shared.worker.job import JobPhase
from tests.support.clock import FakeClock
from tests.unit.services.decode.test_book import job

POOL = 40


class Pressed:
    """A worker whose streams and hand-overs are the test's."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.book = DecodeBook(max_jobs=16, kv_blocks=POOL, is_alive=lambda _: True)
        self.leaving: set[str] = set()
        self.rebalancing = Rebalancing(self.book, self.leaving.__contains__, self.clock)

    def stream(self, name: str, outputs: int = 1, *, max_tokens: int = 400, tokens: int = 16) -> DecodeJob:
        """One that decodes here, with so many tokens of its own."""
        begun = job(name, tokens=tokens, max_tokens=max_tokens)
        self.book.add(begun)
        begun.phase = JobPhase.DECODING
        begun.num_outputs = outputs
        self.book.grow(begun)
        return begun

    def short(self) -> list[DecodeJob]:
        """Three streams that have grown beyond the pool: "b" is the largest, "a" the smallest."""
        streams = [self.stream(name) for name in "abc"]
        for stream, outputs in zip(streams, (20, 200, 100), strict=True):
            stream.num_outputs = outputs
            self.book.grow(stream)
        return streams

    def chosen(self) -> tuple[str, str] | None:
        choice = self.rebalancing.choose()
        return None if choice is None else (choice[0].request_id, choice[1])


@pytest.fixture
def worker() -> Pressed:
    return Pressed()


def test_a_worker_with_room_and_few_streams_keeps_them(worker: Pressed) -> None:
    for number in range(MANY_STREAMS - 1):
        worker.stream(f"s{number}")
    assert worker.chosen() is None


def test_of_a_worker_short_of_blocks_the_smallest_stream_that_is_enough_leaves(worker: Pressed) -> None:
    worker.short()
    assert worker.book.missing_blocks == 9
    assert worker.chosen() == ("a", SHORT_OF_BLOCKS)


def test_where_none_is_enough_the_largest_leaves(worker: Pressed) -> None:
    for stream in worker.short():
        stream.num_outputs += 120
        worker.book.grow(stream)
    assert worker.book.missing_blocks > 25
    assert worker.chosen() == ("b", SHORT_OF_BLOCKS)


def test_a_worker_with_many_streams_asks_whether_others_are_faster(worker: Pressed) -> None:
    for number in range(MANY_STREAMS):
        worker.stream(f"s{number}", MANY_STREAMS - number, max_tokens=100)
    assert worker.chosen() == (f"s{MANY_STREAMS - 1}", LONG_STEPS)


def test_the_next_stream_follows_a_rest_after_the_one_that_left(worker: Pressed) -> None:
    smallest, *_ = worker.short()
    worker.chosen()
    worker.leaving.add(smallest.key)
    worker.clock.advance(10.0)
    assert worker.chosen() is None
    worker.leaving.clear()
    worker.book.remove(smallest.key)
    for stream in worker.book.jobs.values():
        stream.num_outputs += 120
        worker.book.grow(stream)
    assert worker.book.missing_blocks > 0
    assert worker.chosen() is None
    worker.clock.advance(REST_S)
    assert worker.chosen() is not None


@pytest.mark.parametrize("relief", [SHORT_OF_BLOCKS, LONG_STEPS])
def test_a_stream_that_nobody_takes_is_offered_less_and_less_often(worker: Pressed, relief: str) -> None:
    if relief == SHORT_OF_BLOCKS:
        worker.short()
    else:
        for number in range(MANY_STREAMS):
            worker.stream(f"s{number}", max_tokens=100)
    rests = []
    for _ in range(9):
        assert worker.chosen() is not None
        waited_s = 0.0
        while worker.chosen() is None:
            worker.clock.advance(0.25)
            waited_s += 0.25
        worker.rebalancing._end_move(*worker.rebalancing._moving)  # type: ignore[misc]
        rests.append(waited_s)
        worker.clock.advance(MAX_REST_S[relief])
    assert rests[0] == 2 * REST_S
    assert max(rests) == MAX_REST_S[relief]


def test_a_stream_that_has_come_from_another_worker_stays_for_a_while(worker: Pressed) -> None:
    for stream in worker.short():
        stream.peer_role, stream.ready_s = "decode", worker.clock.monotonic_s()
    assert worker.chosen() is None
    worker.clock.advance(STAYS_S)
    assert worker.chosen() is not None


def test_a_stream_without_kv_and_one_that_soon_ends_stay(worker: Pressed) -> None:
    smallest, largest, middle = worker.short()
    smallest.waits_for_blocks = True
    largest.longest = largest.num_known_tokens + FEWEST_TOKENS_LEFT - 1
    middle.stays_until_s = worker.clock.monotonic_s() + 1.0
    assert worker.chosen() is None
    largest.longest += 1
    assert worker.chosen() == ("b", SHORT_OF_BLOCKS)
