"""The mirror of a large prefix cache: pages that listeners put together, and nothing that walks over it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from hashlib import blake2b
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bus.codec import encode
from shared.bus.fleet_state import FleetState
from shared.engine.memory.block_pool import BlockEvent
from shared.errors import InvalidRequest
from shared.messages import Envelope, Heartbeat, Snapshot, unpack_hashes
from shared.worker import prefix_mirror
from shared.worker.prefix_mirror import BUCKETS, MAX_EVENTS_PER_BEAT, MAX_PAGE_HASHES, PrefixMirror
from tests.support.heartbeats import heartbeat_with, make_heartbeat

LARGE = 300_000
"""Twice as many blocks as once fitted into one message."""
USUAL_PAYLOAD_BYTES = 1 << 20


def name(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def added(*numbers: int) -> list[BlockEvent]:
    return [BlockEvent("added", name(number)) for number in numbers]


def removed(*numbers: int) -> list[BlockEvent]:
    return [BlockEvent("removed", name(number)) for number in numbers]


def tell_all(mirror: PrefixMirror) -> int:
    """The number of heartbeats that it took."""
    for beats in itertools.count():
        if not mirror.drain().added:
            return beats
    raise AssertionError


@pytest.fixture(scope="module")
def large() -> PrefixMirror:
    mirror = PrefixMirror()
    mirror.apply(added(*range(LARGE)))
    assert tell_all(mirror) == -(-LARGE // MAX_EVENTS_PER_BEAT)
    return mirror


def test_a_large_cache_comes_in_pages_that_fit_into_a_message(large: PrefixMirror) -> None:
    bucket, known, pages = 0, set[bytes](), 0
    while pages == 0 or bucket != 0:
        page = large.snapshot(bucket)
        assert len(encode(page, Envelope())) < USUAL_PAYLOAD_BYTES // 2
        hashes = unpack_hashes(page.hashes)
        assert len(hashes) <= MAX_PAGE_HASHES
        known.update(hashes)
        bucket, pages = page.next_bucket, pages + 1
    assert known == {name(number) for number in range(LARGE)}
    assert pages <= -(-LARGE // MAX_PAGE_HASHES) + 2


class Unwalkable(set[bytes]):
    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("a heartbeat walked over the prefix cache")


def test_no_heartbeat_walks_over_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = PrefixMirror()
    monkeypatch.setattr(mirror, "_told", [Unwalkable() for _ in range(BUCKETS)])
    for first in range(0, 10_000, 1000):
        mirror.apply(added(*range(first, first + 1000)))
        mirror.apply(removed(*range(first, first + 500)))
        mirror.drain()
    assert mirror.overlap_blocks([name(600), name(601), name(1)]) == 2


def test_a_bucket_that_does_not_exist_is_refused(large: PrefixMirror) -> None:
    for bucket in (-1, BUCKETS):
        with pytest.raises(InvalidRequest, match="bucket"):
            large.snapshot(bucket)


BEAT = make_heartbeat("decode", "decode-0", pid=1)


BLOCKS = 12


class Conversation:
    """A worker whose blocks come and go, and a gateway that hears of them late, never, or page by page.

    It has a past when the gateway joins.
    """

    def __init__(self) -> None:
        self.mirror = PrefixMirror()
        self.fleet = FleetState(keeps_prefixes=True)
        self.numbers = set(range(BLOCKS))
        self.mirror.apply(added(*range(BLOCKS)))
        self.mirror.drain()
        self.late: list[Heartbeat] = []
        self.bucket = 0
        self.page: Snapshot | None = None

    def change(self, number: int) -> None:
        self.mirror.apply(removed(number) if number in self.numbers else added(number))
        self.numbers.symmetric_difference_update({number})

    def beat(self) -> None:
        delta = self.mirror.drain()
        beat = heartbeat_with(BEAT, prefix_event_id=delta.event_id, added=delta.added, removed=delta.removed)
        self.late.append(beat)

    def hear(self) -> None:
        if self.late:
            self.fleet.observe(self.late.pop(0))

    def turn(self) -> None:
        for step in (self.beat, self.hear, self.ask, self.answer):
            step()

    def lose(self) -> None:
        self.beat()
        self.late.pop()

    def ask(self) -> None:
        view = self.fleet.get("decode", "decode-0")
        if view is not None and view.prefix_stale and self.page is None:
            self.page = self.mirror.snapshot(self.bucket)

    def answer(self) -> None:
        if self.page is not None:
            page, self.page = self.page, None
            self.bucket = self.fleet.apply_snapshot("decode", "decode-0", 1, page, self.bucket) or 0


STEPS = st.sampled_from(["beat", "hear", "ask", "answer", "lose", "turn", "turn"])


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS | st.integers(0, BLOCKS), max_size=80))
def test_pages_and_events_in_any_order_make_the_whole_cache(steps: list[str | int]) -> None:
    conversation = Conversation()
    with patch.object(prefix_mirror, "MAX_PAGE_HASHES", 2):
        for step in steps:
            if isinstance(step, int):
                conversation.change(step)
            else:
                getattr(conversation, step)()
        conversation.beat()
        for _ in range(len(conversation.late) + 40):  # nothing is lost any more
            conversation.turn()
    view = conversation.fleet.get("decode", "decode-0")
    assert view is not None
    assert (view.prefix_stale, view.prefix) == (False, {name(number) for number in conversation.numbers})
