"""Choose how long a step may take in which prompts are computed beside streams. Pure.

A step is as long as its prompts need to have their first tokens in time, and as the streams can wait that are
in it: by when the next token of each is due, not by what steps took so far. Where prompts have time enough it
is short, for tokens that come evenly. Where both cannot be had streams go first, and prompts get all that
streams can spare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shared.engine.cost_model import CostModel, Features
from shared.engine.sequence import LiveSequence

MIN_CHUNK_TOKENS = 16
"""A prompt gets at least this much of a step, however short steps shall be: it must come to an end."""
COLD_CHUNK_TOKENS = 64
"""The chunk beside decode rows while the cost model has seen too few steps to say more."""
AWAITED_SHARE = 0.8
"""The share of the time until a token is due that is planned with: the rest is for a step that takes longer
than predicted, and for the way of the token."""


class StepLimits:
    """`max_step_us`: the longest step that prompts may make of one with decode rows, 0: any;
    `max_step_ratio`: how many times as long as without them, while no first token would be late by that, 0:
    any. `itl_target_us`: how long streams then wait for a token whose clients have not said how long they do,
    0: no longer than usual.
    """

    def __init__(
        self,
        cost: CostModel,
        *,
        max_step_us: float = 0.0,
        max_step_ratio: float = 0.0,
        itl_target_us: float = 0.0,
    ) -> None:
        self._cost = cost
        self._max_step_us = max_step_us or math.inf
        self._max_step_ratio = max_step_ratio or math.inf
        self._itl_target_us = itl_target_us

    def chunk_tokens(
        self,
        prompts: Sequence[LiveSequence],
        streams: Sequence[LiveSequence],
        waiting: Iterable[LiveSequence],
        decode: Features,
        room: int,
        now_us: int,
    ) -> int:
        """Return how many tokens of `prompts` go into a step with `decode`, the rows of `streams`: at most
        `room`. Streams that are `waiting` have no row in it: they rest, or their KV is on its way here."""
        awaited_us = AWAITED_SHARE * min(
            min((stream.due_us - now_us for stream in streams), default=math.inf),
            min((_wait_us(stream, now_us) for stream in waiting), default=math.inf) / 2,  # in the next step
        )
        limits_us = (awaited_us, self._max_step_us, self._max_step_ratio) if streams else (awaited_us,)
        if min(limits_us) == math.inf:
            return room
        chunk = COLD_CHUNK_TOKENS
        if self._cost.ready:
            longest_us = awaited_us
            if streams:
                alone_us = max(1.0, self._cost.predict_us(decode))
                needed_us = self._needed_us(prompts, alone_us, now_us)
                beside_us = max(self._max_step_ratio * alone_us, min(needed_us, self._spare_us(streams)))
                longest_us = min(awaited_us, beside_us, self._max_step_us)
            start = max(prompt.num_computed for prompt in prompts)
            chunk = self._cost.max_prefill_tokens(longest_us, decode, start)
        return min(room, max(chunk, MIN_CHUNK_TOKENS))

    def _spare_us(self, streams: Iterable[LiveSequence]) -> float:
        """Return how long a step may be for streams that have not said how long they wait."""
        is_silent = any(stream.inter_token_us == math.inf for stream in streams)
        return AWAITED_SHARE * self._itl_target_us if is_silent else math.inf

    def _needed_us(self, prompts: Iterable[LiveSequence], alone_us: float, now_us: int) -> float:
        """Return how long steps have to be, `alone_us` of each for streams, so that every prompt has its
        first token when it is due; infinity where no length is enough."""
        work_us, needed_us = 0.0, 0.0
        due = (prompt for prompt in prompts if prompt.due_us < math.inf)
        for prompt in sorted(due, key=lambda prompt: prompt.due_us):
            work_us += self._cost.span_us(prompt.num_computed, prompt.num_uncomputed)
            steps = (AWAITED_SHARE * (prompt.due_us - now_us) - work_us) // alone_us  # the most until then
            if steps < 1:
                return math.inf
            needed_us = max(needed_us, alone_us + work_us / steps)
        return needed_us


def _wait_us(stream: LiveSequence, now_us: int) -> float:
    """Return how long a stream without a row may wait for its next token: from when it comes, as far as
    that is known."""
    return stream.inter_token_us if stream.due_us == math.inf else stream.due_us - now_us
