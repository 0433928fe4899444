"""A heartbeat says what is computed before a prompt, by when that is due."""

from __future__ import annotations

from services.prefill.due_tokens import due_tokens
from shared.messages import DUE_EDGES_S


def test_a_prompt_waits_for_those_that_are_due_before_it() -> None:
    waiting = [(DUE_EDGES_S[1], 100), (DUE_EDGES_S[3], 30), (-1.0, 5), (1e9, 7000)]
    assert due_tokens(waiting, 0) == (5, 105, 105, 135, 135, 135, 135, 135)


def test_everybody_waits_for_the_step_that_runs() -> None:
    assert due_tokens([(1e9, 7000), (DUE_EDGES_S[-1], 600)], 512) == (*[512] * 7, 600)
    assert due_tokens([], 0) == (0,) * len(DUE_EDGES_S)
