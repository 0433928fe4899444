"""Ticks of drafting: guess on from what is final, for all sessions that want it at once.

The engine keeps a sequence per session from tick to tick. What was guessed right is computed already, what
was guessed wrong is taken back, and only the rest is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.speculator.draft_sequences import DraftSequences
from shared.engine import Engine, SamplingParams
from shared.errors import InvalidRequest, Overloaded


@dataclass(frozen=True, slots=True)
class Wish:
    """`count` tokens after these, drawn as the target model would draw them at those positions.

    `token_ids` are the session's from `base` on; those before are as the last tick had them. `adapter` as the
    engine calls it. `num_candidates`: so many likeliest outcomes of each draw are remembered.
    """

    key: str
    base: int
    token_ids: tuple[int, ...]
    prompt_len: int
    params: SamplingParams
    count: int
    adapter: str = ""
    num_candidates: int = 0


@dataclass(frozen=True, slots=True)
class Drafted:
    """Guesses by key. `refused`: sessions that this model cannot follow, and why. `forgotten`: those that
    the engine keeps nothing of, so that their next wishes have all their tokens."""

    token_ids: dict[str, tuple[int, ...]]
    refused: dict[str, str]
    forgotten: frozenset[str]


class Drafter:
    """Drafts with the draft model, on the engine's thread. Sequences are kept until they are released or
    others need their room: first all branches give way, then those that were drafted for least recently.
    Their KV may still be in the prefix cache."""

    def __init__(self) -> None:
        self.sequences = DraftSequences()

    def draft(self, engine: Engine, wishes: Sequence[Wish]) -> Drafted:
        sequences = self.sequences
        refused: dict[str, str] = {}
        forgotten: set[str] = set()
        guesses: dict[str, list[int]] = {}
        resting = sequences.resting(wish.key for wish in wishes)
        for wish in wishes:
            sequences.adopt(engine, wish.key, wish.base, wish.token_ids)
            try:
                forgotten |= self._take_in(engine, wish, resting)
            except (Overloaded, InvalidRequest) as error:
                sequences.release(engine, wish.key)
                forgotten.add(wish.key)
                if isinstance(error, InvalidRequest):
                    refused[wish.key] = error.message
                # else no room in this tick: no draft is a good answer too
            else:
                guesses[wish.key] = []
                sequences.use(wish.key)
        while engine.has_work and not engine.awaits_masks:
            for output in engine.step().outputs:
                session = sequences.session_of(output.key)
                guesses[session] += output.token_ids
                sequences.note(output)
                if output.fault is not None:
                    refused[session] = output.fault.message
        waiting = map(sequences.session_of, engine.waiting_for_masks)
        for key in (*refused, *waiting):  # a late draft is worth less than the others' time
            sequences.release(engine, key)
            forgotten.add(key)
            guesses.pop(key, None)
        return Drafted({key: tuple(ids) for key, ids in guesses.items()}, refused, frozenset(forgotten))

    def _take_in(self, engine: Engine, wish: Wish, resting: list[str]) -> set[str]:
        """Let the engine draw for `wish`; returns which of the sessions that rest had to go for that. Raises
        Overloaded when there is no room without them either, InvalidRequest."""
        gone: set[str] = set()
        while True:
            try:
                self._continue(engine, wish)
            except Overloaded:
                if self.sequences.release_branches(engine):
                    continue
                if not resting:
                    raise
                gone.add(resting[0])
                self.sequences.release(engine, resting.pop(0))
            else:
                return gone

    def _continue(self, engine: Engine, wish: Wish) -> None:
        sequences = self.sequences
        name = sequences.main(wish.key)
        if not wish.base or not engine.revise(name, wish.base, wish.token_ids, stop_after=wish.count):
            kept = engine.tokens_since(name, 0)[: wish.base]
            sequences.release(engine, wish.key)
            engine.admit(
                wish.key,
                [*kept, *wish.token_ids],
                wish.prompt_len,
                wish.params,
                stop_after=wish.count,
                adapter=wish.adapter,
            )
            name = sequences.begin(wish.key)
        engine.rank_draws(name, wish.num_candidates)
