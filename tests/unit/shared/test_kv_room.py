from __future__ import annotations

import pytest

from shared.kv_room import LOOK_AHEAD_TOKENS, blocks_ahead


@pytest.mark.parametrize(
    ("num_tokens", "tokens_left", "blocks"),
    [(16, 0, 1), (16, 1, 2), (17, 15, 2), (16, LOOK_AHEAD_TOKENS, 9), (16, LOOK_AHEAD_TOKENS + 1, 9)],
)
def test_a_sequence_has_room_for_what_it_comes_to_next(
    num_tokens: int, tokens_left: int, blocks: int
) -> None:
    assert blocks_ahead(num_tokens, tokens_left) == blocks
