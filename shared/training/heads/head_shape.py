"""Plan how large a draft head is, and after which layers of its target it looks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.engine.draft_head.config import MAX_BLOCKS, NUM_TAPS
from shared.engine.loading.config import ModelConfig
from shared.errors import InvalidRequest

TAP_PLACES = (0.25, 0.6, 1.0)
"""The places of the taps, as shares of the way through the layers: one early, one in the middle and one at
the end, as in EAGLE-3 (arXiv:2503.01840)."""
MLP_RATIO = 8 / 3
INTERMEDIATE_MULTIPLE = 32
MAX_DRAFT_VOCABULARY = 8192
"""The head knows so many of the most frequent tokens: its last matrix is most of what a draft costs."""
DEFAULT_BLOCKS = 1
MIN_HEAD_WIDTH = 32


@dataclass(frozen=True, slots=True)
class HeadShape:
    """`vocab_size` and `target_size` (D) are the target's; a tap is its residual stream after one of
    `tap_layers`, counted from 0."""

    vocab_size: int
    target_size: int
    hidden_size: int
    intermediate_size: int
    num_blocks: int
    tap_layers: tuple[int, ...]
    draft_vocab_size: int
    rms_norm_eps: float = 1e-5

    @property
    def num_parameters(self) -> int:
        """Norms not counted."""
        width = self.hidden_size
        mixing = width * (NUM_TAPS + 1) * self.target_size + width * width
        blocks = 3 * self.num_blocks * width * self.intermediate_size
        return mixing + blocks + self.draft_vocab_size * width


def plan_head(target: ModelConfig, blocks: int = 0, hidden: int = 0) -> HeadShape:
    """Plan a head of so many blocks and so wide; 0: DEFAULT_BLOCKS, the target's width.

    Raises InvalidRequest for sizes that cannot be.
    """
    last = target.num_layers - 1
    taps = tuple(round(place * last) for place in TAP_PLACES)
    if len(set(taps)) < NUM_TAPS:
        raise InvalidRequest(
            f"the target has {target.num_layers} layers; a draft head looks after {NUM_TAPS} different ones"
        )
    if blocks > MAX_BLOCKS:
        raise InvalidRequest(f"--layers is {blocks}; a draft head has 1 to {MAX_BLOCKS} blocks")
    width = hidden or target.hidden_size
    if not MIN_HEAD_WIDTH <= width <= target.hidden_size:
        raise InvalidRequest(
            f"--hidden is {width}; a draft head for this target is {MIN_HEAD_WIDTH} to "
            f"{target.hidden_size} wide"
        )
    return HeadShape(
        vocab_size=target.vocab_size,
        target_size=target.hidden_size,
        hidden_size=width,
        intermediate_size=math.ceil(MLP_RATIO * width / INTERMEDIATE_MULTIPLE) * INTERMEDIATE_MULTIPLE,
        num_blocks=blocks or DEFAULT_BLOCKS,
        tap_layers=taps,
        draft_vocab_size=min(MAX_DRAFT_VOCABULARY, target.vocab_size),
        rms_norm_eps=target.rms_norm_eps,
    )
