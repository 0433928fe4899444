"""Ticks of drafting: guess on from what is final, for all sessions that want it at once.

The engine keeps a sequence per session from tick to tick. What was guessed right is computed already, what
was guessed wrong is taken back, and only the rest is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine import Engine, SamplingParams
from shared.errors import InvalidRequest, Overloaded


@dataclass(frozen=True, slots=True)
class Wish:
    """`count` tokens after these, drawn as the target model would draw them at those positions.

    `token_ids` are the session's from `base` on; those before are as the last tick had them. `adapter` as the
    engine calls it.
    """

    key: str
    base: int
    token_ids: tuple[int, ...]
    prompt_len: int
    params: SamplingParams
    count: int
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Guesses by key. `refused`: sessions that this model cannot follow, and why. `forgotten`: those that
    the engine keeps nothing of, so that their next wishes have all their tokens."""

    token_ids: dict[str, tuple[int, ...]]
    refused: dict[str, str]
    forgotten: frozenset[str]


class Drafter:
    """Drafts with the draft model, on the engine's thread. Sequences are kept until they are released or
    others need their room: then those give way that were drafted for least recently. Their KV may still be in
    the prefix cache."""

    def __init__(self) -> None:
        self._kept: list[str] = []  # least recently drafted for first

    def draft(self, engine: Engine, wishes: Sequence[Wish]) -> Drafted:
        refused: dict[str, str] = {}
        forgotten: set[str] = set()
        guesses: dict[str, list[int]] = {}
        wanted, held = {wish.key for wish in wishes}, engine.held()
        resting = [key for key in self._kept if key in held and key not in wanted]
        for wish in wishes:
            try:
                forgotten |= _take_in(engine, wish, resting)
            except (Overloaded, InvalidRequest) as error:
                engine.release(wish.key)
                forgotten.add(wish.key)
                if isinstance(error, InvalidRequest):
                    refused[wish.key] = error.message
                # else no room in this tick: no draft is a good answer too
            else:
                guesses[wish.key] = []
        while engine.has_work and not engine.awaits_masks:
            for output in engine.step().outputs:
                guesses[output.key] += output.token_ids
                if output.fault is not None:
                    refused[output.key] = output.fault.message
        for key in (*refused, *engine.waiting_for_masks):  # a late draft is worth less than the others' time
            engine.release(key)
            forgotten.add(key)
            guesses.pop(key, None)
        self._kept = [*resting, *guesses]
        return Drafted({key: tuple(ids) for key, ids in guesses.items()}, refused, frozenset(forgotten))


def _take_in(engine: Engine, wish: Wish, resting: list[str]) -> set[str]:
    """Let the engine draw for `wish`; returns which of the sequences that rest had to go for that. Raises
    Overloaded when there is no room without them either, InvalidRequest."""
    gone: set[str] = set()
    while True:
        try:
            _continue(engine, wish)
        except Overloaded:
            if not resting:
                raise
            gone.add(resting[0])
            engine.release(resting.pop(0))
        else:
            return gone


def _continue(engine: Engine, wish: Wish) -> None:
    if wish.base and engine.revise(wish.key, wish.base, wish.token_ids, stop_after=wish.count):
        return
    kept = engine.tokens_since(wish.key, 0)[: wish.base]
    engine.release(wish.key)
    engine.admit(
        wish.key,
        [*kept, *wish.token_ids],
        wish.prompt_len,
        wish.params,
        stop_after=wish.count,
        adapter=wish.adapter,
    )
