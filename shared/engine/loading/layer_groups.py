"""Group the layers of a model that share blocks of KV: those whose KV is kept as long, in groups of one
size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.blocks.layer_groups import KvGroups
from shared.blocks.window import NO_WINDOW, KvWindow

MOST_GROUPS = 8
"""About so many at most: each is a table of blocks to keep for every sequence."""


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """Layer l is in group `group_of[l]`, and row `row_of[l]` of the `block_layers` rows of its blocks is its.

    Any block may become any group's, so memory is never on the wrong side of a border. A model whose layers
    all see everything, or all have a window, has one group: a block then has all layers. Else groups have as
    many layers as there are of the rarer kind, which leaves few rows of a block unused.
    """

    group_of: tuple[int, ...]
    row_of: tuple[int, ...]
    windows: tuple[KvWindow, ...]  # by group; those that see everything come first
    block_layers: int
    counts: KvGroups = field(init=False, compare=False)  # how many groups there are of each kind

    def __post_init__(self) -> None:
        windowed = [window for window in self.windows if window.tokens]
        tokens = windowed[0].tokens if windowed else 0
        counts = KvGroups(self.count - len(windowed), len(windowed), tokens)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of(cls, windows: Sequence[int | None]) -> LayerGroups:
        """`windows`: of each layer, None where it sees everything."""
        whole = [layer for layer, window in enumerate(windows) if window is None]
        windowed = [layer for layer, window in enumerate(windows) if window is not None]
        widest = KvWindow(max((window for window in windows if window is not None), default=0))
        size = len(windows)
        if whole and windowed:
            size = max(min(len(whole), len(windowed)), -(-size // MOST_GROUPS))
        group_of, row_of = [0] * len(windows), [0] * len(windows)
        of_groups: list[KvWindow] = []
        for layers, window in ((whole, NO_WINDOW), (windowed, widest)):
            for place, layer in enumerate(layers):
                group_of[layer], row_of[layer] = len(of_groups) + place // size, place % size
            of_groups += [window] * -(-len(layers) // size)
        return cls(tuple(group_of), tuple(row_of), tuple(of_groups), size)

    @property
    def count(self) -> int:
        return len(self.windows)
