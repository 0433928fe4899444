"""Place the blocks of a request in a pool, and list which cells of them a transfer has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine.loading.layer_groups import LayerGroups
from shared.errors import InvalidRequest
from shared.kv.cells import CellMap, Run
from shared.kv.limits import MAX_TRANSFER_BLOCKS


@dataclass(frozen=True, slots=True)
class RequestBlocks:
    """Request block i is tables[g][i] in group g of the layers, all of which have as many; those before
    `first_blocks[g]` are not part of the transfer. `group_of` says in which group each layer is."""

    tables: tuple[tuple[int, ...], ...]
    first_blocks: tuple[int, ...]
    group_of: tuple[int, ...]

    @classmethod
    def of(
        cls, tables: Sequence[Sequence[int]], first_blocks: Sequence[int], groups: LayerGroups
    ) -> RequestBlocks:
        """Raises InvalidRequest for tables that are not one request's, or too large for one transfer."""
        blocks = cls(tuple(map(tuple, tables)), tuple(first_blocks), groups.group_of)
        lengths = {len(table) for table in blocks.tables}
        fits = len(lengths) == 1 and len(blocks.tables) == len(blocks.first_blocks) == groups.count
        if not fits or not blocks.starts_fit() or blocks.num_blocks > MAX_TRANSFER_BLOCKS:
            raise InvalidRequest(
                f"tables of {sorted(lengths)} blocks from {blocks.first_blocks} on are beyond a transfer "
                f"between {groups.count} groups of layers"
            )
        return blocks

    @property
    def end(self) -> int:
        return len(self.tables[0])

    @property
    def num_blocks(self) -> int:
        return sum(self.end - first for first in self.first_blocks)

    def starts_fit(self) -> bool:
        return all(0 <= first <= self.end for first in self.first_blocks)

    @property
    def moving(self) -> list[int]:
        """The pool's blocks that are part of the transfer."""
        return [
            block
            for table, first in zip(self.tables, self.first_blocks, strict=True)
            for block in table[first:]
        ]

    def of_run(self, run: Run) -> tuple[int, ...]:
        """The pool's blocks of those cells."""
        return self.tables[self.group_of[run.layer]][run.first : run.end]

    def cells(self) -> CellMap:
        """Return the cells of all layers."""
        return CellMap([self.first_blocks[group] for group in self.group_of], self.end)
