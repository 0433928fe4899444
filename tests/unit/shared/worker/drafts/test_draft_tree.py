"""Drafts with branches: which guesses come next, and what the bus may bring."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.engine.engine_config import MAX_DRAFT_TOKENS
from shared.errors import ProtocolError
from shared.messages import DraftBlock
from shared.worker.drafts.draft_tree import MAX_BRANCHES, DraftBranch, DraftTree, packed, trees_of

TREE = DraftTree(
    5,
    (10, 11, 12),
    (
        DraftBranch(3, 13, (14, 15)),
        DraftBranch(0, 20, (21, 22)),
        DraftBranch(1, 30, (31,)),
        DraftBranch(1, 40, (41, 42)),
        DraftBranch(1, 40, (49,)),
    ),
)


@pytest.mark.parametrize(
    ("decided", "rest"),
    [
        ((), (10, 11, 12)),
        ((10,), (11, 12)),
        ((10, 11), (12,)),
        ((10, 11, 12), (13, 14, 15)),
        ((10, 11, 12, 13), (14, 15)),
        ((10, 11, 12, 13, 14), (15,)),
        ((10, 11, 12, 13, 14, 15), ()),
        ((10, 11, 12, 19), ()),
        ((20,), (21, 22)),
        ((20, 29), ()),
        ((10, 30), (31,)),
        ((10, 40), (41, 42)),
        ((10, 49), ()),
        ((10, 11, 30), ()),
    ],
)
def test_the_draft_goes_on_where_the_round_ended(decided: tuple[int, ...], rest: tuple[int, ...]) -> None:
    assert TREE.rest_after(decided) == rest


def block(branches: Sequence[tuple[int, ...]] = (), *, ids: int = 1, rows: int = 1) -> DraftBlock:
    return DraftBlock(("r",) * rows, (1,) * rows, (5,) * rows, ((7,) * ids,) * rows, tuple(branches))


def test_branches_come_over_the_bus_as_they_were() -> None:
    sent = DraftBlock(("a", "b"), (1, 2), (5, 6), (TREE.token_ids, (7,)), (packed(TREE.branches), ()), (9, 0))
    assert list(trees_of(sent)) == [("a", 1, TREE, 9), ("b", 2, DraftTree(6, (7,)), 0)]


def test_a_block_of_a_worker_that_knows_no_branches_has_none() -> None:
    assert list(trees_of(block())) == [("r", 1, DraftTree(5, (7,)), 0)]


def test_as_much_as_may_be_sent_is_taken() -> None:
    full = packed([DraftBranch(0, 1, (2,) * MAX_DRAFT_TOKENS)] * MAX_BRANCHES)
    ((_, _, tree, _),) = trees_of(block([full], ids=2 * MAX_DRAFT_TOKENS))
    assert len(tree.branches) == MAX_BRANCHES


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (block([packed([DraftBranch(0, 1, (2,))] * (MAX_BRANCHES + 1))]), "more than 64 branches"),
        (block([packed([DraftBranch(0, 1, (2,) * (MAX_DRAFT_TOKENS + 1))])]), "not of 1 to 64 tokens"),
        (block([(0, 1, 0)]), "not of 1 to 64 tokens"),
        (block([(0, 1, -1)]), "not of 1 to 64 tokens"),
        (block([(0, 1)]), "not of 1 to 64 tokens"),
        (block([(0, 1, 3, 7, 7)]), "a branch of 3 tokens has 2"),
        (block([(), ()]), "columns of other lengths"),
        (DraftBlock(("r",), (1, 2), (5,), ((7,),)), "columns of other lengths"),
        (DraftBlock(("r",), (1,), (5,), ((7,),), (), (1, 2)), "columns of other lengths"),
        (block(ids=2 * MAX_DRAFT_TOKENS + 1), "more than 128 tokens"),
    ],
)
def test_what_is_too_much_or_no_draft_is_refused_at_the_door(sent: DraftBlock, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        trees_of(sent)
