"""Ticks that prepare: while a round is verified, draft on behind its likely outcomes.

A round verifies guesses that were drafted here, so what each of their draws might have been instead is known:
an outcome is how many of them are right, and the id that follows. Each one that is chosen is a branch of the
session's sequence; all are drafted in the same steps, the likeliest first where there is no time for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from services.speculator.branch_shape import BranchShape, best_shape
from services.speculator.draft_sequences import DraftSequences
from shared.engine import Engine
from shared.engine.cost_model import NOTHING, Features
from shared.errors import InvalidRequest, Overloaded
from shared.seams.clock import SYSTEM_CLOCK, Clock
from shared.worker.drafts.draft_tree import MAX_BRANCHES, DraftBranch

USUAL_CHANCES = (0.75, 0.15, 0.06)
"""The chances of what follows when all guesses of a round are right, before that has been drawn."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round that verifies `guesses`: `count` tokens are wanted behind each of `fan` ids at each place.

    `token_ids` are the session's from `base` on, as for a Wish. `most_accepted`: the most of the guesses that
    the round may find right. It is of use until `until_s` of the monotonic clock, None for unknown.
    """

    key: str
    base: int
    token_ids: tuple[int, ...]
    guesses: tuple[int, ...]
    count: int
    fan: int
    most_accepted: int
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Branches by key, the likeliest first. `forgotten`: sessions that the engine keeps nothing of."""

    branches: dict[str, tuple[DraftBranch, ...]]
    forgotten: frozenset[str] = frozenset()


class _Outcome(NamedTuple):
    """`accepted` guesses are right and the id at `place` of those that are likely there follows."""

    round: Round
    accepted: int
    place: int
    token_id: int | None  # None: not drawn yet
    chance: float


@dataclass(slots=True)
class _Branch:
    outcome: _Outcome
    token_ids: list[int] = field(default_factory=list)


class Preparer:
    """Prepares on the engine's thread, in branches of `sequences`."""

    def __init__(self, sequences: DraftSequences, clock: Clock = SYSTEM_CLOCK) -> None:
        self._sequences = sequences
        self._clock = clock

    def prepare(self, engine: Engine, rounds: Sequence[Round], may_go_on: Callable[[], bool]) -> Prepared:
        """Draft as many branches as there are places, blocks and time for; `may_go_on` is asked before each
        step. Where steps take longer than they were thought to, branches are shorter instead of late."""
        known = [each for each in rounds if self._has_drawn(engine, each)]
        forgotten = {each.key for each in rounds} - {each.key for each in known}
        outcomes = sorted(
            (outcome for each in known for outcome in self._outcomes(each)), key=lambda each: -each.chance
        )
        limits = [each.until_s for each in known if each.until_s is not None]
        until_s = max(limits, default=math.inf)
        rows, depth = self._shape(engine, known, outcomes, until_s)
        branches: dict[str, _Branch] = {}
        later: list[_Outcome] = []
        going_on: list[_Outcome] = []
        for outcome in islice(outcomes, rows):
            if outcome.token_id is not None:
                self._branch(engine, outcome, depth, branches)
            elif outcome.place == 0:
                going_on.append(outcome)
            else:
                later.append(outcome)
        for outcome in going_on:  # last: branches are of sequences that are held
            self._go_on(engine, outcome, depth, branches)
        self._draw(engine, depth, branches, later, until_s, may_go_on)
        for name in list(branches):
            if not engine.hold(name) or not branches[name].token_ids:
                forgotten |= self._give_up(engine, name, branches.pop(name))
        return Prepared(_by_session(branches.values()), frozenset(forgotten))

    # ---- what is likely ----------------------------------------------------------------------------

    def _has_drawn(self, engine: Engine, wanted: Round) -> bool:
        """Whether the engine has the session's tokens and the guesses that are verified."""
        sequences = self._sequences
        path = (*wanted.token_ids, *wanted.guesses)
        sequences.adopt(engine, wanted.key, wanted.base, path)
        drawn = engine.tokens_since(sequences.main(wanted.key), wanted.base)
        if tuple(drawn[: len(path)]) != path:
            sequences.release(engine, wanted.key)
            return False
        sequences.use(wanted.key)
        return True

    def _outcomes(self, wanted: Round) -> Iterator[_Outcome]:
        """The outcomes of a round by its drafter's own chances."""
        name, position = self._sequences.main(wanted.key), wanted.base + len(wanted.token_ids)
        reached = 1.0  # the chance that all guesses before are right
        for accepted, guess in enumerate(wanted.guesses[: wanted.most_accepted + 1]):
            candidates = self._sequences.candidates(name, position + accepted)
            others = [each for each in candidates if each.token_id != guess][: wanted.fan]
            for place, each in enumerate(others, 1):
                yield _Outcome(wanted, accepted, place, each.token_id, reached * each.chance)
            reached *= next((each.chance for each in candidates if each.token_id == guess), 0.5)
        if wanted.most_accepted >= len(wanted.guesses):
            for place, chance in enumerate(USUAL_CHANCES[: wanted.fan]):
                yield _Outcome(wanted, len(wanted.guesses), place, None, reached * chance)

    def _shape(
        self, engine: Engine, known: Sequence[Round], outcomes: Sequence[_Outcome], until_s: float
    ) -> BranchShape:
        """Return for how many outcomes there are places and time, and how many tokens each then gets."""
        free = engine.config.max_sequences - len(engine.held())
        going_on = sum(each.most_accepted >= len(each.guesses) for each in known)
        rows = min(len(outcomes), free + going_on, MAX_BRANCHES * len(known))
        depth = max((each.count for each in known), default=0)
        if math.isinf(until_s) or not engine.cost.ready:
            return BranchShape(rows, depth)
        left_us = 1e6 * (until_s - self._clock.monotonic_s())
        keys = max(each.base + len(each.token_ids) for each in known)
        fixed_us = engine.cost.predict_us(NOTHING)
        branch_us = engine.cost.predict_us(Features(1, 1, keys)) - fixed_us
        return best_shape([each.chance for each in outcomes[:rows]], depth, left_us, fixed_us, branch_us)

    # ---- branches ----------------------------------------------------------------------------------

    def _branch(self, engine: Engine, outcome: _Outcome, depth: int, branches: dict[str, _Branch]) -> None:
        """Begin with a branch, if there are blocks for it and something is left to draw behind it."""
        assert outcome.token_id is not None
        wanted = outcome.round
        base = wanted.base + len(wanted.token_ids) + outcome.accepted
        main = self._sequences.main(wanted.key)
        name = self._sequences.new_branch(wanted.key)
        count = min(depth, wanted.count)
        try:
            engine.branch(main, name, base, (outcome.token_id,), stop_after=count)
        except (Overloaded, InvalidRequest):  # no room, or the end of the text: nothing to prepare for
            self._sequences.drop_branch(engine, name)
        else:
            branches[name] = _Branch(outcome)

    def _go_on(self, engine: Engine, outcome: _Outcome, depth: int, branches: dict[str, _Branch]) -> None:
        """Let the session's own sequence draw what follows when all guesses are right."""
        wanted = outcome.round
        main = self._sequences.main(wanted.key)
        length = wanted.base + len(wanted.token_ids) + outcome.accepted
        try:
            begun = engine.revise(main, length, (), stop_after=1 + min(depth, wanted.count))
        except (Overloaded, InvalidRequest):
            return
        if begun:
            engine.rank_draws(main, 1 + wanted.fan)
            branches[main] = _Branch(outcome)

    def _draw(
        self,
        engine: Engine,
        depth: int,
        branches: dict[str, _Branch],
        later: Sequence[_Outcome],
        until_s: float,
        may_go_on: Callable[[], bool],
    ) -> None:
        """Step until all are drawn, no more may be, or the next step would end too late. Those of `later`
        begin when what they follow has been drawn."""
        now_s, step_s = self._clock.monotonic_s(), 0.0
        while branches and engine.has_work and may_go_on() and now_s + step_s <= until_s:
            outputs = engine.step().outputs
            ended_s = self._clock.monotonic_s()
            step_s, now_s = ended_s - now_s, ended_s
            for output in outputs:
                branch = branches.get(output.key)
                if branch is None:
                    continue
                first = not branch.token_ids
                branch.token_ids += output.token_ids
                self._sequences.note(output)
                if first and branch.outcome.token_id is None:
                    for outcome in self._drawn(branch.outcome.round, output.key, later):
                        self._branch(engine, outcome, depth, branches)

    def _drawn(self, wanted: Round, main: str, later: Sequence[_Outcome]) -> Iterator[_Outcome]:
        """The outcomes behind all guesses whose ids are known now."""
        position = wanted.base + len(wanted.token_ids) + len(wanted.guesses)
        candidates = self._sequences.candidates(main, position)
        for outcome in later:
            if outcome.round is wanted and outcome.place < len(candidates):
                yield outcome._replace(token_id=candidates[outcome.place].token_id)

    def _give_up(self, engine: Engine, name: str, branch: _Branch) -> set[str]:
        """Let go of a sequence that is of no use; returns the session, where it was the one that goes on."""
        session = branch.outcome.round.key
        if name != self._sequences.main(session):
            self._sequences.drop_branch(engine, name)
            return set()
        if engine.hold(name):
            return set()
        self._sequences.release(engine, session)
        return {session}


def _by_session(branches: Iterable[_Branch]) -> dict[str, tuple[DraftBranch, ...]]:
    found: dict[str, list[tuple[float, DraftBranch]]] = {}
    for branch in branches:
        outcome, ids = branch.outcome, branch.token_ids
        if outcome.token_id is None:
            bonus, *ids = ids
        else:
            bonus = outcome.token_id
        if ids:
            made = DraftBranch(outcome.accepted, bonus, tuple(ids))
            found.setdefault(outcome.round.key, []).append((outcome.chance, made))
    return {
        key: tuple(made for _, made in sorted(several, key=lambda each: -each[0]))[:MAX_BRANCHES]
        for key, several in found.items()
    }
