"""Keep what a tick is about and what has come of it, and tell decode workers of that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from services.speculator.drafting import Drafted
from services.speculator.preparing import Prepared
from services.speculator.sessions import DraftSession, DraftWish
from shared.messages import DraftBlock
from shared.worker.drafts.draft_tree import DraftTree, packed


@dataclass(frozen=True, slots=True)
class TickSession:
    """A session as it was when a tick began: it had `base` tokens, and `guesses` are those of the round that
    is prepared for."""

    key: str
    session: DraftSession
    base: int
    wish: DraftWish
    guesses: tuple[int, ...] = ()

    @property
    def untold(self) -> tuple[int, ...]:
        """Return those of its tokens that the engine does not know yet."""
        return tuple(self.session.tokens[self.session.num_known : self.base])


@dataclass(frozen=True, slots=True)
class DraftTick:
    """The work of one tick, and what came of it: guesses, or branches for rounds."""

    asked: Sequence[TickSession]
    outcome: Drafted | Prepared

    def answers(self) -> Iterator[tuple[TickSession, DraftTree]]:
        """Return what there is to be sent."""
        for asked in self.asked:
            if isinstance(self.outcome, Drafted):
                guesses = self.outcome.token_ids.get(asked.key, ())
                if guesses:
                    yield asked, DraftTree(asked.base, guesses)
            elif branches := self.outcome.branches.get(asked.key, ()):
                yield asked, DraftTree(asked.base, asked.guesses, branches)


def draft_blocks(
    answers: Iterable[tuple[TickSession, DraftTree]], now_s: float
) -> Iterator[tuple[str, DraftBlock]]:
    """Return one block per decode worker."""
    rows: dict[str, list[tuple[TickSession, DraftTree]]] = {}
    for asked, tree in answers:
        rows.setdefault(asked.session.decode, []).append((asked, tree))
    for decode, several in rows.items():
        block = DraftBlock(
            request_ids=tuple(asked.session.request_id for asked, _ in several),
            epochs=tuple(asked.session.epoch for asked, _ in several),
            bases=tuple(tree.base for _, tree in several),
            token_ids=tuple(tree.token_ids for _, tree in several),
            branches=tuple(packed(tree.branches) for _, tree in several),
            took_us=tuple(max(1, round(1e6 * (now_s - asked.wish.asked_s))) for asked, _ in several),
        )
        yield decode, block
