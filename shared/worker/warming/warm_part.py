"""Compute a part of a prefix that is being warmed, in the engine's thread: one that takes about PART_US.

Between two parts the engine holds nothing of it, and whatever else has come is computed first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.deadline import Deadline
from shared.engine import Engine
from shared.engine.cost_model import NOTHING
from shared.engine.scheduling.order import LOWEST_PRIORITY
from shared.errors import PenstockError
from shared.sampling.parameters import SamplingParams

PART_US = 20_000
"""The longest that a prompt waits for the part that runs when it comes, as far as that can be predicted."""
COLD_PART_TOKENS = 32
"""The tokens of a part while nobody knows how long one takes."""
KEY = "warm/0"
"""The engine's name for a part; no request's key looks like it."""
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class WarmPrefix:
    """The full blocks of `token_ids` that `block_hashes` name, for `request_id` of `gateway`; of no use to
    anybody after `deadline`. `adapter` is what the engine calls it, "" for the model alone. `patient`: it
    waits while there is anything else to do."""

    request_id: str
    gateway: str
    deadline: Deadline
    token_ids: tuple[int, ...]
    block_hashes: tuple[bytes, ...]
    adapter: str = ""
    patient: bool = False

    @property
    def num_tokens(self) -> int:
        """The tokens of its hashed blocks."""
        return len(self.block_hashes) * HASH_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class WarmPart:
    """`num_tokens` of `prefix` were computed; none where something else came first, or why it cannot be."""

    prefix: WarmPrefix
    num_tokens: int = 0
    error: PenstockError | None = None


def compute_part(engine: Engine, prefix: WarmPrefix, start: int, on_layer: Callable[[], None]) -> WarmPart:
    """KV of the tokens from `start` on, before which all is in the prefix cache. In the engine's thread.

    Its blocks are given back before this returns; what is full stays in the prefix cache. `on_layer` is
    called after every layer.
    """
    others = engine.has_work
    if others:
        return WarmPart(prefix)
    end = min(prefix.num_tokens, start + _part_tokens(engine, start))
    try:
        admitted = engine.admit(
            KEY,
            prefix.token_ids[:end],
            end,
            ONE_TOKEN,
            prefix.block_hashes[: end // HASH_BLOCK_TOKENS],
            stop_after=1,
            on_layer=lambda *_: on_layer(),
            adapter=prefix.adapter,
            priority=LOWEST_PRIORITY,
        )
    except PenstockError as error:
        return WarmPart(prefix, error=error)
    computed = 0
    if admitted.cached_tokens >= start:
        while engine.has_work:
            computed += engine.step().num_prefill_tokens
    engine.release(KEY)
    return WarmPart(prefix, computed)


def _part_tokens(engine: Engine, start: int) -> int:
    """Whole blocks, at least one."""
    tokens = engine.cost.max_prefill_tokens(PART_US, NOTHING, start) if engine.cost.ready else 0
    if not engine.cost.vouches_for(tokens):
        tokens = min(COLD_PART_TOKENS, engine.config.max_batch_tokens)
    return max(1, tokens // HASH_BLOCK_TOKENS) * HASH_BLOCK_TOKENS
