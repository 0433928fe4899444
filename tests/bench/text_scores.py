"""What a model makes of a text: how likely it finds it, what it would choose, and how it would go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from shared.demo.corpus import pieces, read_books
from shared.engine import Engine, SamplingParams

CONTEXT_TOKENS = 128  # of every window, read but not scored
CONTINUATION_TOKENS = 64
CONTINUATIONS = 20  # of the windows, spread evenly
PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class TextScores:
    nats: float  # mean loss per scored token
    choices: Tensor  # [scored tokens]: greedy choice after each
    continuations: tuple[tuple[int, ...], ...]

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats)

    def worse_than(self, base: TextScores) -> float:
        """How much higher the perplexity is, as a share of `base`'s."""
        return math.expm1(self.nats - base.nats)

    def same_choice(self, base: TextScores) -> float:
        """The share of positions with `base`'s greedy choice, on the same text."""
        return (self.choices == base.choices).double().mean().item()

    def same_continuation(self, base: TextScores) -> float:
        """The share of continuations that are `base`'s to the last token."""
        pairs = list(zip(self.continuations, base.continuations, strict=True))
        return sum(mine == theirs for mine, theirs in pairs) / len(pairs)


def score_text(engine: Engine, windows: Sequence[Sequence[int]]) -> TextScores:
    """Of each window's tokens after the first CONTEXT_TOKENS + 1."""
    nats, choices = [], []
    for window in windows:
        logits = engine.logits(window[:-1])[CONTEXT_TOKENS:]
        targets = torch.tensor(window[1 + CONTEXT_TOKENS :])
        nats.append(functional.cross_entropy(logits, targets).item())
        choices.append(logits.argmax(-1))
    return TextScores(sum(nats) / len(nats), torch.cat(choices), tuple(_continue(engine, windows)))


def to_continue(windows: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The beginnings of some of the windows."""
    return [window[:PROMPT_TOKENS] for window in windows[:: math.ceil(len(windows) / CONTINUATIONS)]]


def _continue(engine: Engine, windows: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """The greedy continuation of each beginning, one sequence at a time."""
    params = SamplingParams(temperature=0.0, max_tokens=CONTINUATION_TOKENS, ignore_eos=True)
    for prompt in to_continue(windows):
        engine.admit("bench", prompt, len(prompt), params)
        drawn: list[int] = []
        while engine.has_work:
            for output in engine.step().outputs:
                drawn += output.token_ids
        yield tuple(drawn)


def held_out_windows(
    encode: Callable[[str], list[int]], books: Path, num_tokens: int, count: int
) -> list[list[int]]:
    """`count` windows of `num_tokens`, each with one more, spread evenly over the books that are trained on
    nowhere. `encode` adds no special tokens."""
    tokens: list[int] = []
    for text in read_books(books).held_out:
        for piece in pieces(text):
            tokens += encode(piece)
    size = num_tokens + 1
    stride = (len(tokens) - size) // count
    return [tokens[start : start + size] for start in range(0, stride * count, stride)]
