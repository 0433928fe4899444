from __future__ import annotations

import pytest

from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from tests.support.block_hashes import numbered_hashes

MIXED = KvGroups(2, 3, 17)


def test_every_group_has_a_block_of_its_own_for_the_same_tokens() -> None:
    assert ONE_GROUP.most_blocks(100, 1) == 7
    assert KvGroups(0, 1, 17).most_blocks(1000, 1) == 5
    assert MIXED.most_blocks(40, 1) == 5 * 3
    assert MIXED.most_blocks(1000, 1) == 2 * 63 + 3 * 5


def test_rows_read_all_blocks_of_some_groups_and_the_window_of_others() -> None:
    assert MIXED.read_blocks(count=10, position=160) == 2 * 10 + 3 * 2
    assert MIXED.read_blocks(count=3, position=160) == 2 * 3
    assert ONE_GROUP.read_blocks(count=10, position=160) == 10


@pytest.mark.parametrize(
    ("whole", "windowed", "count"),
    [
        ("xxxxxxx", "....xx.", 6),
        ("xxxxx..", "....xx.", 5),
        ("xxxxxxx", ".......", 0),
        ("xxxxxxx", "xx.....", 2),
        ("...xxxx", "xxxxxxx", 0),
    ],
)
def test_a_prefix_is_reusable_where_both_kinds_of_groups_have_what_is_read(
    whole: str, windowed: str, count: int
) -> None:
    names = numbered_hashes(range(7))
    there = {name for name, letter in zip(names, whole, strict=True) if letter == "x"}
    there |= {
        MIXED.windowed_hash(name) for name, letter in zip(names, windowed, strict=True) if letter == "x"
    }
    assert MIXED.reusable_blocks(names, there.__contains__) == count


def test_blocks_of_groups_with_a_window_have_other_names_only_beside_others() -> None:
    (name,) = numbered_hashes([1])
    assert KvGroups(0, 1, 17).windowed_hash(name) == name
    assert MIXED.windowed_hash(name) != name
    assert MIXED.windowed_hash(MIXED.windowed_hash(name)) == name
