"""One tick of drafting: guess on from what is final, for all sessions that want it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine import Engine, SamplingParams
from shared.errors import InvalidRequest, Overloaded


@dataclass(frozen=True, slots=True)
class Wish:
    """`count` tokens after `token_ids`, drawn as the target model would draw them at those positions."""

    key: str
    token_ids: tuple[int, ...]
    prompt_len: int
    params: SamplingParams
    count: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """Guesses by key. `refused`: sessions that this model cannot follow, and why."""

    token_ids: dict[str, tuple[int, ...]]
    refused: dict[str, str]


def draft(engine: Engine, wishes: Sequence[Wish]) -> Drafted:
    """For the engine's thread. Holds nothing afterwards but prefix-cache blocks.

    Sessions are not kept in the engine: whatever of a session's tokens fills whole blocks is found in the
    prefix cache again, so admitting it anew costs one short chunk, which draws the first guess as well.
    """
    refused: dict[str, str] = {}
    guesses: dict[str, list[int]] = {}
    for wish in wishes:
        try:
            engine.admit(wish.key, wish.token_ids, wish.prompt_len, wish.params, stop_after=wish.count)
        except Overloaded:
            continue  # no room in this tick: no draft is a good answer too
        except InvalidRequest as error:
            refused[wish.key] = error.message
        else:
            guesses[wish.key] = []
    while engine.has_work:
        for output in engine.step().outputs:
            guesses[output.key] += output.token_ids
    for key in guesses:
        engine.release(key)
    return Drafted({key: tuple(ids) for key, ids in guesses.items()}, refused)
