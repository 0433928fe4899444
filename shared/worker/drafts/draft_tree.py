"""A draft with branches: guesses from one position on, and others for where they may turn out wrong. Pure.

Who drafted keeps what it sent, who verifies what it got: both find in it, by the tokens that became final
since, which guesses come next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import NamedTuple

from shared.engine.engine_config import MAX_DRAFT_TOKENS
from shared.errors import ProtocolError
from shared.messages import DraftBlock

MAX_BRANCHES = 64
"""The most branches of one draft that are taken from the bus."""
_HEAD = 3
"""Integers before the ids of a branch on the wire."""


class DraftBranch(NamedTuple):
    """A draft for one outcome of a round: the first `accepted` of the ids that it verifies are right, then
    follow `bonus` and, as a guess, `token_ids`."""

    accepted: int
    bonus: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftTree:
    """`token_ids` are guesses from position `base` on; a branch goes on where they, or all of them, end."""

    base: int
    token_ids: tuple[int, ...]
    branches: tuple[DraftBranch, ...] = ()

    def rest_after(self, decided: Sequence[int]) -> tuple[int, ...]:
        """Return the guesses of what follows `decided`, the tokens that are final from `base` on; nothing
        where these went another way."""
        accepted = common_length(decided, self.token_ids)
        if accepted == len(decided) < len(self.token_ids):
            return self.token_ids[accepted:]
        behind = tuple(decided[accepted:])
        for branch in self.branches:
            if branch.accepted == accepted:
                path = (branch.bonus, *branch.token_ids)
                if len(behind) < len(path) and path[: len(behind)] == behind:
                    return path[len(behind) :]
        return ()


def trees_of(block: DraftBlock) -> Iterator[tuple[str, int, DraftTree, int]]:
    """Return what is in a block: (request_id, epoch, draft, microseconds that it took, 0 = unknown).

    Raises ProtocolError, before the first, for columns that do not belong together, and for more guesses than
    anybody may send.
    """
    rows = len(block.request_ids)
    required = (block.epochs, block.bases, block.token_ids)
    optional = (block.branches, block.took_us)
    if any(len(column) != rows for column in required) or any(
        len(each) not in (0, rows) for each in optional
    ):
        raise ProtocolError(f"a draft block has columns of other lengths than its {rows} rows")
    if any(len(ids) > 2 * MAX_DRAFT_TOKENS for ids in block.token_ids):
        raise ProtocolError(f"a draft has more than {2 * MAX_DRAFT_TOKENS} tokens; send fewer")
    branches = [_unpacked(numbers) for numbers in block.branches] or [()] * rows
    return zip(
        block.request_ids,
        block.epochs,
        map(DraftTree, block.bases, block.token_ids, branches),
        block.took_us or (0,) * rows,
        strict=True,
    )


def packed(branches: Iterable[DraftBranch]) -> tuple[int, ...]:
    """Return them as a row of a DraftBlock has them."""
    return tuple(
        chain.from_iterable(
            (each.accepted, each.bonus, len(each.token_ids), *each.token_ids) for each in branches
        )
    )


def _unpacked(numbers: Sequence[int]) -> tuple[DraftBranch, ...]:
    """Raises ProtocolError for what is no row of branches, or of too many."""
    found: list[DraftBranch] = []
    start = 0
    while start < len(numbers):
        if len(found) == MAX_BRANCHES:
            raise ProtocolError(f"a draft has more than {MAX_BRANCHES} branches; send fewer")
        head = numbers[start : start + _HEAD]
        if len(head) < _HEAD or not 1 <= head[2] <= MAX_DRAFT_TOKENS:
            raise ProtocolError(f"a branch is not of 1 to {MAX_DRAFT_TOKENS} tokens behind what it is for")
        start += _HEAD + head[2]
        ids = tuple(numbers[start - head[2] : start])
        if len(ids) < head[2]:
            raise ProtocolError(f"a branch of {head[2]} tokens has {len(ids)}")
        found.append(DraftBranch(head[0], head[1], ids))
    return tuple(found)


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many of their first ids are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
