"""The blocks that one sequence has in one group of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.window import KvWindow

NO_BLOCK = -1
"""The entry of a table where nothing is, because it is behind the window or not given yet."""


@dataclass(slots=True)
class Turnover:
    """The exchange of blocks behind the window of a long prompt whose KV is promised to somebody: what is
    promised, from block `end` on, is there from the start, and blocks [first, end) are given as those behind
    the window come back, by now up to `given`. They get their names when they are given back: until then
    nobody else may hold one, so that each that is given back is one that can be given."""

    first: int
    given: int
    end: int


@dataclass(slots=True)
class BlockTable:
    """Block i has KV of tokens [16 i, 16 i + 16) in the layers of `group`, as far as rows to come read it:
    the first `num_passed` are behind the window and not held, the first `num_committed` have their names."""

    group: int
    window: KvWindow
    blocks: list[int] = field(default_factory=list)
    num_passed: int = 0
    num_committed: int = 0
    turnover: Turnover | None = None
    first_promised: int | None = None  # block from which on it keeps all, whatever its window
    anchors: list[int] = field(default_factory=list)  # held for the prefix cache: see BlockNaming.commit

    @property
    def num_given(self) -> int:
        """Return how many of its first blocks it holds, or has held."""
        return len(self.blocks) if self.turnover is None else self.turnover.given

    @property
    def num_held(self) -> int:
        """Blocks that it holds."""
        held, turnover = len(self.blocks) - self.num_passed, self.turnover
        return held if turnover is None else held - (turnover.end - turnover.given)

    def turning(self, num_computed: int) -> range:
        """Its full blocks that get their names when they are given back."""
        turnover = self.turnover
        if turnover is None:
            return range(0)
        full = num_computed // HASH_BLOCK_TOKENS
        return range(max(turnover.first, self.num_passed), min(turnover.end, full))


def held_blocks(tables: Sequence[BlockTable]) -> list[int]:
    """Every block that they hold a reference to, in the order in which BlockPool.free wants them."""
    anchors = [block for table in tables for block in table.anchors]
    return [*anchors, *in_order([table.blocks for table in tables])]


def in_order(rows: Sequence[Sequence[int]]) -> Iterator[int]:
    """The blocks of several groups by their tokens, so that those of the same ones stay together."""
    if len(rows) == 1:
        return (block for block in rows[0] if block != NO_BLOCK)
    return (
        block for at_once in zip_longest(*rows, fillvalue=NO_BLOCK) for block in at_once if block != NO_BLOCK
    )
