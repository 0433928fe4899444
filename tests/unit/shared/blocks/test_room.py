from __future__ import annotations

import pytest

from shared.blocks.layer_groups import KvGroups
from shared.blocks.room import LOOK_AHEAD_TOKENS, blocks_ahead


@pytest.mark.parametrize(
    ("num_tokens", "tokens_left", "blocks"),
    [(16, 0, 1), (16, 1, 2), (17, 15, 2), (16, LOOK_AHEAD_TOKENS, 9), (16, LOOK_AHEAD_TOKENS + 1, 9)],
)
def test_a_sequence_has_room_for_what_it_comes_to_next(
    num_tokens: int, tokens_left: int, blocks: int
) -> None:
    assert blocks_ahead(num_tokens, tokens_left) == blocks


@pytest.mark.parametrize(("num_tokens", "num_rows", "blocks"), [(16, 1, 9), (200, 1, 11), (200, 64, 15)])
def test_with_a_window_a_sequence_has_room_for_that_and_a_step(
    num_tokens: int, num_rows: int, blocks: int
) -> None:
    assert blocks_ahead(num_tokens, 1000, KvGroups(0, 1, 100), num_rows=num_rows) == blocks


def test_each_group_of_layers_has_its_own_room() -> None:
    assert blocks_ahead(2000, 80, KvGroups(2, 3, 100)) == 2 * 130 + 3 * 11
