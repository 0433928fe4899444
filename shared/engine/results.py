"""The answers of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shared.engine.sampling.candidates import LikelyDraw
from shared.engine.scheduling.draft_prices import DraftPrices
from shared.engine.sequence import LiveSequence
from shared.errors import PenstockError
from shared.sampling.parameters import TokenLogprob


@dataclass(frozen=True, slots=True)
class AdmitResult:
    """`cached_tokens` need no computing; `tables` are all blocks allocated so far, by group of layers, in
    order. With `on_layer` those from `first_blocks` on stay what they are until the sequence is released;
    what is before them is behind the window of whoever goes on behind the prompt."""

    cached_tokens: int
    tables: tuple[tuple[int, ...], ...]
    first_blocks: tuple[int, ...]

    @classmethod
    def of(cls, sequence: LiveSequence) -> AdmitResult:
        first_blocks = tuple(table.first_promised or 0 for table in sequence.tables)
        return cls(sequence.num_computed, _blocks_of(sequence), first_blocks)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks, by group of layers, for KV that arrives from outside, which is wanted from `first_blocks` on:
    those before are filled already, `num_cached_blocks` in the first group, or behind the window."""

    tables: tuple[tuple[int, ...], ...]
    first_blocks: tuple[int, ...]
    num_cached_blocks: int

    @classmethod
    def of(cls, sequence: LiveSequence, num_cached_blocks: int) -> Reservation:
        first_blocks = tuple(table.num_committed for table in sequence.tables)
        return cls(_blocks_of(sequence), first_blocks, num_cached_blocks)


@dataclass(frozen=True, slots=True)
class KvLoan:
    """KV of a sequence of `num_tokens` tokens, for a reader outside: blocks [first_blocks[g], end_block) of
    each group g of layers, which lie at `tables`. `token_ids` are the tokens that it was asked for."""

    num_tokens: int
    token_ids: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    first_blocks: tuple[int, ...]
    end_block: int


class TokenOutput(NamedTuple):
    """New tokens of one sequence; `position` is the absolute position of the first.

    `finish_reason` is "stop" (the last token is an end or stop id, or completed the grammar), "length",
    "error" (the sequence's own constraints, or logits that are no numbers, left nothing to draw; `fault` says
    why where its grammar cannot be followed) or None. `looked_up`: the drafts were found in the sequence's
    own text, nobody had offered them; `from_head`: a draft head of this engine made them. `candidates`: of
    each token, the likeliest outcomes of its draw, where they are ranked for this sequence.
    """

    key: str
    position: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    accepted_drafts: int
    proposed_drafts: int
    looked_up: bool = False
    from_head: bool = False
    fault: PenstockError | None = None
    candidates: tuple[tuple[LikelyDraw, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Computed:
    """Prompt progress: KV of tokens [start_token, end_token) was computed in this step."""

    key: str
    start_token: int
    end_token: int


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Raw log-probabilities of prompt tokens that a step computed; `position` is that of the first."""

    key: str
    position: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """One iteration. `step_us` is all of it, `model_us` the forward pass alone; `mask_waits` draws were put
    off for want of masks, and `num_resting` sequences that decode had no row in it.

    `reused` is progress too: tokens of prompts that other sequences have computed since their admission.
    """

    outputs: tuple[TokenOutput, ...]
    prompt_scores: tuple[PromptScores, ...]
    computed: tuple[Computed, ...]
    reused: tuple[Computed, ...]
    batch_tokens: int
    num_decode: int
    num_prefill_tokens: int
    preempted_keys: tuple[str, ...]
    step_us: int
    model_us: int
    mask_waits: int = 0
    num_resting: int = 0
    draft_prices: DraftPrices | None = None
    """The price of verifying a token in it; None where nobody decoded, or nothing is known yet."""


NO_STEP = StepResult((), (), (), (), 0, 0, 0, (), 0, 0)
"""There was nothing to compute."""


def _blocks_of(sequence: LiveSequence) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(table.blocks) for table in sequence.tables)
