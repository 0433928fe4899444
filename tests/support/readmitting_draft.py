"""Drafting that keeps nothing between ticks: what a speculator's kept sequences are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from services.speculator.drafting import Wish
from shared.engine import Engine
from shared.errors import InvalidRequest, Overloaded


def readmitting_draft(engine: Engine, wishes: Sequence[Wish]) -> dict[str, tuple[int, ...]]:
    """Guesses by key; every wish has all tokens of its session. Nothing is held afterwards."""
    guesses: dict[str, list[int]] = {}
    for wish in wishes:
        try:
            engine.admit(wish.key, wish.token_ids, wish.prompt_len, wish.params, stop_after=wish.count)
        except (Overloaded, InvalidRequest):
            continue
        guesses[wish.key] = []
    while engine.has_work:
        for output in engine.step().outputs:
            guesses[output.key] += output.token_ids
    for key in guesses:
        engine.release(key)
    return {key: tuple(ids) for key, ids in guesses.items()}
