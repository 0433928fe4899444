"""Which layers share blocks."""

from __future__ import annotations

import pytest

from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from shared.blocks.window import NO_WINDOW, KvWindow
from shared.engine.loading.layer_groups import MOST_GROUPS, LayerGroups


def test_layers_of_one_kind_are_one_group_that_keeps_what_the_widest_window_reads() -> None:
    assert LayerGroups.of([None] * 3) == LayerGroups((0, 0, 0), (0, 1, 2), (NO_WINDOW,), 3)
    assert LayerGroups.of([None] * 3).counts == ONE_GROUP
    assert LayerGroups.of([7, 9]) == LayerGroups((0, 0), (0, 1), (KvWindow(9),), 2)
    assert LayerGroups.of([7, 9]).counts == KvGroups(0, 1, 9)


def test_two_kinds_are_cut_into_groups_of_as_many_layers_as_the_rarer_one_has() -> None:
    groups = LayerGroups.of([8, 8, None, 8, 8, None, 8])
    assert groups.block_layers == 2
    assert groups.windows == (NO_WINDOW, KvWindow(8), KvWindow(8), KvWindow(8))
    assert groups.group_of == (1, 1, 0, 2, 2, 0, 3)
    assert groups.row_of == (0, 1, 0, 0, 1, 1, 0)


def test_one_odd_layer_does_not_make_a_group_of_every_other() -> None:
    groups = LayerGroups.of([None, *[8] * 63])
    assert groups.block_layers == 64 // MOST_GROUPS
    assert groups.counts == KvGroups(1, MOST_GROUPS, 8)


@pytest.mark.parametrize(
    ("windows", "tokens", "kept"),
    [
        ([None if layer % 6 == 5 else 512 for layer in range(26)], 8192, 0.22),  # Gemma 3 1B
        ([None if layer % 6 == 5 else 512 for layer in range(26)], 32768, 0.17),
        ([None if layer % 2 else 4096 for layer in range(26)], 8192, 0.75),  # Gemma 2 2B
        ([None if layer % 2 else 4096 for layer in range(26)], 32768, 0.56),
    ],
)
def test_what_published_models_keep_of_a_long_context(
    windows: list[int | None], tokens: int, kept: float
) -> None:
    groups = LayerGroups.of(windows)
    rows = groups.counts.most_blocks(tokens, 1) * groups.block_layers
    assert round(rows / (tokens / 16 * len(windows)), 2) == kept
