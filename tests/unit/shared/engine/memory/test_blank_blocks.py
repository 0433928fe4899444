"""Blank blocks are taken in an order, and some take no memory."""

from __future__ import annotations

import math

import pytest

from shared.engine.memory.blank_blocks import BlankBlocks
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_block_that_was_used_is_taken_before_one_that_takes_no_memory(clock: FakeClock) -> None:
    blank = BlankBlocks(4, clock)
    assert [blank.take(), blank.take()] == [0, 1]
    blank.add(1)
    blank.add(0)
    assert [blank.take(), blank.take(), blank.take()] == [0, 1, 2]
    assert (len(blank), blank.num_unused) == (1, 1)


def test_of_those_that_take_no_memory_the_first_is_taken(clock: FakeClock) -> None:
    blank = BlankBlocks(4, clock)
    taken = [blank.take() for _ in range(4)]
    for block in (2, 0, 3):
        blank.add_unused(block)
    assert list(blank.is_unused) == [1, 0, 1, 1]
    assert [blank.take(), blank.take(), blank.take()] == [0, 2, 3]
    assert list(blank.is_unused) == [0] * len(taken)


def test_those_are_idle_that_are_blank_for_so_long_the_oldest_first(clock: FakeClock) -> None:
    blank = BlankBlocks(4, clock)
    began_s = clock.monotonic_s()
    assert blank.oldest_s() == math.inf
    for block in [blank.take() for _ in range(3)]:
        blank.add(block)
        clock.advance(1.0)
    assert blank.oldest_s() == began_s
    assert blank.take_idle(began_s - 0.001, 4) == []
    assert blank.take_idle(began_s + 1.0, 1) == [0]
    assert blank.take_idle(began_s + 1.0, 4) == [1]
    assert [block in blank for block in range(4)] == [False, False, True, True]
