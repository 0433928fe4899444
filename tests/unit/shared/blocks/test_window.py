from __future__ import annotations

from itertools import product

import pytest

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.window import NO_WINDOW, KvWindow
from tests.support.block_hashes import numbered_hashes


@pytest.mark.parametrize(
    ("position", "first"),
    [(0, 0), (79, 0), (80, 4), (81, 4), (143, 4), (144, 8)],  # a row at 80 sees 64 to 80
)
def test_blocks_are_passed_a_tile_at_a_time(position: int, first: int) -> None:
    assert KvWindow(17).first_block(position) == first
    assert NO_WINDOW.first_block(position) == 0


@pytest.mark.parametrize(("tokens", "num_rows"), list(product([1, 17, 64, 100], [1, 16, 50])))
def test_a_step_never_needs_more_than_the_most_blocks(tokens: int, num_rows: int) -> None:
    window = KvWindow(tokens)
    needed = [
        -(-(position + num_rows) // HASH_BLOCK_TOKENS) - window.first_block(position)
        for position in range(400)
    ]
    assert max(needed) == window.most_blocks(num_rows)


def reusable(window: KvWindow, cached: str) -> int:
    """`cached`: a letter per block, x where it is."""
    names = numbered_hashes(range(len(cached)))
    there = {name for name, letter in zip(names, cached, strict=True) if letter == "x"}
    return window.reusable_blocks(names, there.__contains__)


@pytest.mark.parametrize(
    ("cached", "count"),
    [
        ("", 0),
        ("xxx..x", 3),
        ("x.....", 1),
        ("....xx", 6),  # what comes next is at 96: nothing before 80 is read, and so nothing before 64
        (".....x", 0),
        ("....x.", 5),
        ("xxxx..xxxxxxxx", 14),
    ],
)
def test_a_prefix_is_reusable_where_the_window_at_its_end_is(cached: str, count: int) -> None:
    assert reusable(KvWindow(17), cached) == count


def test_without_a_window_a_prefix_is_reusable_up_to_its_first_gap() -> None:
    assert reusable(NO_WINDOW, "xx.xxx") == 2
