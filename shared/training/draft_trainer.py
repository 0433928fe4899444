"""One step of distillation: the draft's distribution comes nearer to the target's, at the temperatures that
are used.

The target's is known at its TOP tokens p_k and as the rest r = 1 - sum p_k. The divergence compares those TOP
+ 1 events; with q the draft's distribution and q_r its rest, its gradient at the draft's logits is

    q_j - p_j                   at the TOP tokens
    q_j (1 - r / q_r)           elsewhere

Below temperature 1 the rest is taken as nought: what is sharpened has next to none. Greedy rows are taught at
GREEDY_TEMPERATURE, where the first choice counts most and a near second one still counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from shared.training.llama import Llama
from shared.training.loop import StepFigures, TrainingLoop
from shared.training.optimizer import Optimizer, rate_factor
from shared.training.precision import fast_products
from shared.training.taught_rows import TaughtRow

LINES = 2
LENGTH_TOKENS = 512
HEAD_POSITIONS = 512  # logits of so many positions are in memory at once
GREEDY_TEMPERATURE = 0.5
WARMUP_STEPS = 30
GRADIENT_LIMIT = 1.0
LEAST_REST = 1e-6
START_SCALES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """B rows of T tokens, of which N positions are followed by one that the target generated."""

    ids: Tensor  # [B, T] int64
    positions: Tensor  # [N] int64, into the flattened [B * T]
    top_ids: Tensor  # [N, TOP] int64
    top_logprobs: Tensor  # [N, TOP]
    temperatures: Tensor  # [N]


@dataclass(slots=True)
class DraftLine:
    """One line of a batch while rows are put into it; the lists are of tensors, one per row."""

    ids: Tensor  # [LENGTH_TOKENS] int64
    filled: int = 0
    positions: list[int] = field(default_factory=list)
    top_ids: list[Tensor] = field(default_factory=list)
    top_logprobs: list[Tensor] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)

    def put(self, row: TaughtRow) -> None:
        """Put as much of `row` as there is room for."""
        taken = min(len(row.ids), LENGTH_TOKENS - self.filled)
        self.ids[self.filled : self.filled + taken] = row.ids[:taken]
        learned = max(0, taken - row.prompt_tokens)
        first = self.filled + row.prompt_tokens - 1
        self.positions += range(first, first + learned)
        self.top_ids.append(row.top_ids[:learned])
        self.top_logprobs.append(row.top_logprobs[:learned])
        self.temperatures += [row.temperature or GREEDY_TEMPERATURE] * learned
        self.filled += taken


class TaughtBatches:
    """Endless batches of rows in a random order, one behind the other in lines of LENGTH_TOKENS."""

    def __init__(self, rows: list[TaughtRow], seed: int) -> None:
        self._rows = rows
        self._random = np.random.default_rng(seed)

    def __iter__(self) -> TaughtBatches:
        return self

    def __next__(self) -> DraftBatch:
        lines = [self._line() for _ in range(LINES)]
        return DraftBatch(
            torch.stack([line.ids for line in lines]),
            torch.tensor(
                [n + index * LENGTH_TOKENS for index, line in enumerate(lines) for n in line.positions]
            ),
            torch.cat([part for line in lines for part in line.top_ids]).long(),
            torch.cat([part for line in lines for part in line.top_logprobs]),
            torch.tensor([value for line in lines for value in line.temperatures]),
        )

    def _line(self) -> DraftLine:
        line = DraftLine(torch.zeros(LENGTH_TOKENS, dtype=torch.int64))
        while line.filled < LENGTH_TOKENS:
            line.put(self._rows[int(self._random.integers(len(self._rows)))])
        return line


def divergence_gradient(
    logits: Tensor, top_ids: Tensor, top_logprobs: Tensor, temperatures: Tensor
) -> tuple[Tensor, Tensor]:
    """The divergence at each of N positions [N], and its gradient at `logits` [N, V], both float32.

    `top_ids` and `top_logprobs` [N, TOP] are the target's at temperature 1, `temperatures` [N] those compared
    at. Most of the time of a step goes to passes over [N, V], so there are few.
    """
    scales = temperatures[:, None]
    scaled = logits / scales if logits.dtype == torch.float32 else logits.float().div_(scales)  # [N, V]
    scaled.sub_(scaled.logsumexp(-1, keepdim=True))
    sharp = scales < 1
    wanted = (top_logprobs / scales).exp()
    wanted = torch.where(sharp, wanted / wanted.sum(-1, keepdim=True), wanted)  # [N, TOP]
    rest = (1 - wanted.sum(-1, keepdim=True)).clamp_min(0.0)
    rest = torch.where(sharp, torch.zeros_like(rest), rest)  # [N, 1]
    said = scaled.gather(1, top_ids)  # [N, TOP]
    said_rest = (1 - said.exp().sum(-1, keepdim=True)).clamp_min(LEAST_REST)
    losses = (torch.xlogy(wanted, wanted) - wanted * said).sum(-1)
    losses += (torch.xlogy(rest, rest) - rest * said_rest.log())[:, 0]
    gradient = scaled.exp_().mul_((1 - rest / said_rest) / scales)
    return losses, gradient.scatter_(1, top_ids, (said.exp() - wanted) / scales)


@torch.no_grad()
def calibrate_draft(draft: Llama, batch: DraftBatch) -> None:
    """Make the logits of a draft that has not learned as much smaller as brings it nearest to the target:
    what is cut out of a model is surer than it is right."""
    weight = draft.model.norm.weight
    whole = weight.clone()
    found: list[tuple[float, float]] = []
    for scale in START_SCALES:
        weight.copy_(whole * scale)
        hidden = draft.model(batch.ids).flatten(0, 1)[batch.positions[:HEAD_POSITIONS]]
        part = slice(HEAD_POSITIONS)
        losses, _ = divergence_gradient(
            draft.head(hidden), batch.top_ids[part], batch.top_logprobs[part], batch.temperatures[part]
        )
        found.append((losses.mean().item(), scale))
    weight.copy_(whole * min(found)[1])


class DraftTrainer:
    """A draft in training; `loop` knows the share of the time that is spent."""

    def __init__(self, draft: Llama, optimizer: Optimizer, loop: TrainingLoop) -> None:
        self._draft = draft
        self._optimizer = optimizer
        self._loop = loop

    def take_step(self, batch: DraftBatch) -> StepFigures:
        """Learn from a batch."""
        divergence, agreed = learn_batch(self._draft, batch)
        nn.utils.clip_grad_norm_(self._draft.parameters(), GRADIENT_LIMIT)
        self._optimizer.step(rate_factor(self._loop.progress.step, self._loop.share, WARMUP_STEPS))
        return StepFigures(batch.ids.numel(), {"divergence": divergence, "agreement": agreed})


def learn_batch(draft: Llama, batch: DraftBatch) -> tuple[float, float]:
    """Add the gradients of the mean divergence; it, and the share of positions with the same first choice."""
    count = len(batch.positions)
    with fast_products():
        hidden = draft.model(batch.ids).flatten(0, 1)[batch.positions]  # [N, D]
    below = hidden.detach().requires_grad_()
    divergence, agreed = 0.0, 0.0
    for first in range(0, count, HEAD_POSITIONS):
        part = slice(first, first + HEAD_POSITIONS)
        with fast_products():
            logits = draft.head(below[part])
        with torch.no_grad():
            losses, gradient = divergence_gradient(
                logits, batch.top_ids[part], batch.top_logprobs[part], batch.temperatures[part]
            )
            divergence += losses.sum().item() / count
            agreed += (logits.argmax(-1) == batch.top_ids[part, 0]).sum().item() / count
        logits.backward((gradient / count).to(logits.dtype))  # type: ignore[no-untyped-call]
    hidden.backward(below.grad)
    return divergence, agreed
