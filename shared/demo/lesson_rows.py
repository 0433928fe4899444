"""Lessons as rows of tokens: the passages once, behind them every question with its answer as a branch.

A branch sees the passages and itself, at the positions that it would have alone, so that a row computes what
as many separate prompts would, for a fraction of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.demo.lessons.lesson import Lesson
from shared.messages import ChatTurn
from shared.text.retrieval_prompt import retrieval_prompt
from shared.text.tokenizer import TextTokenizer

LENGTH_POWER = -0.5
"""A long answer counts more than a short one, but not as often as it is longer."""


@dataclass(frozen=True, slots=True)
class LessonRow:
    """T tokens of which those of the answers are learned, N in all."""

    ids: Tensor  # [1, T] int64
    places: Tensor  # [T] int64: the position of each
    seen: Tensor  # [T, T] bool: what each looks at
    positions: Tensor  # [N] int64, into T: before each token that is learned
    targets: Tensor  # [N] int64
    weights: Tensor  # [N] fp32
    answers: Tensor  # [N] int64: the number of the answer that it belongs to


def lesson_row(lesson: Lesson, tokenizer: TextTokenizer) -> LessonRow:
    """The row of all exchanges of `lesson`."""
    prompts = [
        tokenizer.encode_chat([ChatTurn("user", retrieval_prompt(lesson.passages, question))])
        for question, _ in lesson.exchanges
    ]
    answers = [answer_ids(answer, tokenizer) for _, answer in lesson.exchanges]
    return branched_row(prompts, answers)


def answer_ids(answer: str, tokenizer: TextTokenizer) -> list[int]:
    """The ids of an answer and of the token that ends a turn."""
    assert tokenizer.eos_token is not None
    ids = tokenizer.encode_text(answer, add_special_tokens=False)
    return [*ids, *tokenizer.encode_text(tokenizer.eos_token, add_special_tokens=False)]


def branched_row(prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> LessonRow:
    """Lay out what all `prompts` begin with, then the rest of each with its answer: that alone is learned."""
    shared = _common_length(prompts)
    ids, places, branches = list(prompts[0][:shared]), list(range(shared)), [-1] * shared
    positions: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    numbers: list[int] = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        branch = [*prompt[shared:], *answer]
        first = len(ids) + len(prompt) - shared - 1  # it predicts the first token of the answer
        positions += range(first, first + len(answer))
        targets += answer
        weights += [len(answer) ** LENGTH_POWER] * len(answer)
        numbers += [number] * len(answer)
        places += range(shared, shared + len(branch))
        branches += [number] * len(branch)
        ids += branch
    branch_of = torch.tensor(branches)
    before = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    seen = before & ((branch_of[:, None] == branch_of[None]) | (branch_of[None] < 0))
    return LessonRow(
        ids=torch.tensor([ids]),
        places=torch.tensor(places),
        seen=seen,
        positions=torch.tensor(positions),
        targets=torch.tensor(targets),
        weights=torch.tensor(weights),
        answers=torch.tensor(numbers),
    )


def _common_length(prompts: Sequence[list[int]]) -> int:
    """Return the length of the beginning that is the same in all, at least one token less than any."""
    shortest = min(map(len, prompts)) - 1
    first = prompts[0]
    for index in range(shortest):
        if any(prompt[index] != first[index] for prompt in prompts):
            return index
    return shortest
