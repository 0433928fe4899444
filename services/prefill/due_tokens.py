"""Count the tokens that a prompt waits for here, by when its own first token is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shared.messages import DUE_EDGES_S


def due_tokens(waiting: Iterable[tuple[float, int]], running_tokens: int) -> tuple[int, ...]:
    """Return how many tokens are computed before those of a prompt that is due at each of DUE_EDGES_S, at
    most. `waiting`: in how many seconds prompts are due here, and their tokens; of these `running_tokens` are
    in the step that runs, for which everybody waits."""
    left = list(waiting)
    before = (sum(tokens for due_s, tokens in left if due_s <= edge_s) for edge_s in DUE_EDGES_S)
    return tuple(max(running_tokens, tokens) for tokens in before)
