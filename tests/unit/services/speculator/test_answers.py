"""The messages that tell decode workers what a tick has brought."""

from __future__ import annotations

from services.speculator.answers import DraftTick, TickSession, draft_blocks
from services.speculator.drafting import Drafted
from services.speculator.preparing import Prepared
from services.speculator.sessions import DraftSession, DraftWish
from shared.sampling.parameters import SamplingParams
from shared.worker.drafts.draft_tree import DraftBranch, DraftTree, trees_of


def asked(request_id: str, decode: str, guesses: tuple[int, ...] = ()) -> TickSession:
    session = DraftSession(request_id, 1, decode, [1, 2, 3], 2, SamplingParams(), 0.0)
    return TickSession(f"{request_id}/1", session, 3, DraftWish(4, asked_s=10.0), guesses)


def test_each_decode_worker_gets_one_block_with_its_own_rows() -> None:
    tick = DraftTick(
        [asked("a", "d0"), asked("b", "d1"), asked("c", "d0"), asked("none", "d0")],
        Drafted({"a/1": (5,), "b/1": (6,), "c/1": (7, 8)}, {}, frozenset()),
    )
    blocks = dict(draft_blocks(tick.answers(), 10.5))
    assert set(blocks) == {"d0", "d1"}
    assert list(trees_of(blocks["d0"])) == [
        ("a", 1, DraftTree(3, (5,)), 500_000),
        ("c", 1, DraftTree(3, (7, 8)), 500_000),
    ]


def test_branches_go_with_the_guesses_of_their_round() -> None:
    branches = (DraftBranch(0, 9, (8,)),)
    tick = DraftTick([asked("a", "d0", (5, 6)), asked("b", "d0", (7,))], Prepared({"a/1": branches}))
    ((_, block),) = draft_blocks(tick.answers(), 10.0)
    assert list(trees_of(block)) == [("a", 1, DraftTree(3, (5, 6), branches), 1)]
