"""The engine's sequences of each draft session: the one that goes on, branches off it, and what else each of
their draws might have been. All of this is of the engine's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from shared.engine import Engine, TokenOutput
from shared.engine.sampling.candidates import LikelyDraw
from shared.worker.drafts.draft_tree import common_length


@dataclass(slots=True)
class _Family:
    main: str
    branches: list[str] = field(default_factory=list)


class DraftSequences:
    """Sequences by session. A branch whose outcome came to pass goes on in place of the sequence that it was
    branched off."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._session_of: dict[str, str] = {}
        self._candidates: dict[str, dict[int, tuple[LikelyDraw, ...]]] = {}  # by sequence and position
        self._numbers = count(1)

    def main(self, session: str) -> str:
        """Return the engine's name of the sequence that goes on."""
        family = self._families.get(session)
        return session if family is None else family.main

    def session_of(self, sequence: str) -> str:
        return self._session_of.get(sequence, sequence)

    def begin(self, session: str) -> str:
        """Return a name for the session's sequence, which has none now."""
        self._families[session] = _Family(session)
        self._session_of[session] = session
        return session

    def new_branch(self, session: str) -> str:
        """Return a name for one more sequence of the session."""
        name = f"{session}+{next(self._numbers)}"
        self._families[session].branches.append(name)
        self._session_of[name] = session
        return name

    def adopt(self, engine: Engine, session: str, base: int, token_ids: Sequence[int]) -> None:
        """Go on with the sequence that has most of `token_ids` from `base` on; the others are released."""
        family = self._families.get(session)
        if family is None:
            return
        names = [family.main, *family.branches]
        best = max(names, key=lambda name: common_length(engine.tokens_since(name, base), token_ids))
        self._release(engine, (name for name in names if name != best))
        self._families[session] = _Family(best)
        told = self._candidates.get(best)
        if told is not None:
            self._candidates[best] = {place: each for place, each in told.items() if place >= base}

    def note(self, output: TokenOutput) -> None:
        """Remember what else these draws might have been."""
        if output.candidates:
            told = self._candidates.setdefault(output.key, {})
            told.update(enumerate(output.candidates, output.position))

    def candidates(self, sequence: str, position: int) -> tuple[LikelyDraw, ...]:
        """Return the likeliest outcomes of the draw at `position`; nothing where they were not told."""
        return self._candidates.get(sequence, {}).get(position, ())

    def drop_branch(self, engine: Engine, sequence: str) -> None:
        """Release a branch that nothing was drawn for."""
        self._families[self._session_of[sequence]].branches.remove(sequence)
        self._release(engine, [sequence])

    def release(self, engine: Engine, session: str) -> None:
        """Release all that a session has; one that has nothing is fine."""
        family = self._families.pop(session, None)
        if family is not None:
            self._release(engine, (family.main, *family.branches))

    def release_branches(self, engine: Engine) -> bool:
        """Release all branches, for want of room; False where there are none."""
        found = [name for family in self._families.values() for name in family.branches]
        for family in self._families.values():
            family.branches.clear()
        self._release(engine, found)
        return bool(found)

    def resting(self, wanted: Iterable[str]) -> list[str]:
        """Return the other sessions that have sequences, the least recently drafted for first."""
        left_out = set(wanted)
        return [session for session in self._families if session not in left_out]

    def use(self, session: str) -> None:
        """It was drafted for just now."""
        if session in self._families:
            self._families[session] = self._families.pop(session)

    def __iter__(self) -> Iterator[str]:
        return iter(self._families)

    def _release(self, engine: Engine, names: Iterable[str]) -> None:
        for name in names:
            engine.release(name)
            self._session_of.pop(name, None)
            self._candidates.pop(name, None)
