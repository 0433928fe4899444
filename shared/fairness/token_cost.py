"""Weigh tokens: how much service computing, drawing and holding one of them is.

A drawn token takes a step of its own, in which a batch of them shares the weights that are read, where a
prompt shares them among all its tokens: the paper's figure of two for one is taken over. Attention reads all
KV that a sequence holds once a step, so that a long one costs more for each token that it draws.
"""

from __future__ import annotations

COMPUTED = 1.0
"""The cost of a prompt's token that is computed: the unit of all others. A cached one costs nothing."""
DRAWN = 2.0
HELD = 0.001
"""The cost of a token's KV that is held for one step."""


def prompt_cost(computed_tokens: int) -> float:
    return COMPUTED * computed_tokens


def step_cost(drawn_tokens: int, held_tokens: int) -> float:
    """Return the cost of a step in which a sequence draws so many tokens and holds the KV of so many."""
    return DRAWN * drawn_tokens + HELD * held_tokens


def request_cost(prompt_tokens: int, drawn_tokens: float) -> float:
    """Return the cost of a whole request that finds nothing cached and draws one token a step."""
    held = drawn_tokens * (prompt_tokens + drawn_tokens / 2)
    return prompt_cost(prompt_tokens) + DRAWN * drawn_tokens + HELD * held
