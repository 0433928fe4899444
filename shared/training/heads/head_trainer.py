"""One step of a draft head: it drafts ahead on its own states, and each draft comes nearer to the target.

From every place of a batch the head is unrolled UNROLLED_STEPS times, each on the state that it left itself
(the training-time test of EAGLE-3, arXiv:2503.01840) and on the token that the target has drawn: drafts
behind a wrong one are worth nothing. Each step is taught the target's distribution over the tokens that the
head knows, at the row's temperature; later ones count less, by STEP_WEIGHT each.

Confidence is taught whether the drafts agree that target and head would draw with the same noise, on those
places alone where all before agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.training.heads.draft_head import DraftHead
from shared.training.heads.target_taps import TappedRows, TappedSegment
from shared.training.llama import Llama
from shared.training.loop import StepFigures, TrainingLoop
from shared.training.optimizer import Optimizer, rate_factor
from shared.training.precision import fast_products, product_type

UNROLLED_STEPS = 4
STEP_WEIGHT = 0.8
CONFIDENCE_WEIGHT = 0.1
SEGMENT_TOKENS = 68
PLACES_PER_BATCH = 512
ROWS_IN_CACHE = 32
NOISE_WINDOWS = 1 << 16
GREEDY_TEMPERATURE = 0.5
"""Greedy rows are taught at this temperature, where a near second choice still counts."""
WARMUP_STEPS = 20
GRADIENT_LIMIT = 1.0


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """N places: parts of rows, one behind the other. From a place to the end of its part there is its row."""

    taps: Tensor  # bfloat16 [N, 3, D]
    tokens: Tensor  # int64 [N]
    last: Tensor  # int64 [N]: the last place of the part that each place is in
    temperatures: Tensor  # float32 [N]

    @classmethod
    def of_segments(cls, segments: Sequence[TappedSegment]) -> HeadBatch:
        """Join parts of rows."""
        lengths = torch.tensor([len(segment.tokens) for segment in segments])
        last = (lengths.cumsum(0) - 1).repeat_interleave(lengths)
        temperatures = torch.tensor([segment.temperature for segment in segments])
        return cls(
            torch.cat([segment.taps for segment in segments]),
            torch.cat([segment.tokens for segment in segments]),
            last,
            temperatures.repeat_interleave(lengths),
        )


class TappedBatches:
    """Endless batches of parts of rows; every generated token is as likely to begin one."""

    def __init__(self, files: Sequence[TappedRows], seed: int) -> None:
        self._files = files
        self._ends = np.cumsum([file.num_tokens for file in files])
        self._random = np.random.default_rng(seed)

    def __iter__(self) -> TappedBatches:
        return self

    def __next__(self) -> HeadBatch:
        segments: list[TappedSegment] = []
        places = 0
        while places < PLACES_PER_BATCH:
            at = int(self._random.integers(self._ends[-1]))
            number = int(np.searchsorted(self._ends, at, side="right"))
            first = at - int(self._ends[number - 1] if number else 0)
            segments.append(self._files[number].segment(first, SEGMENT_TOKENS))
            places += len(segments[-1].tokens)
        return HeadBatch.of_segments(segments)


class TargetVocabulary:
    """The target's embedding, and what it says after its last layer about the tokens that a head knows."""

    def __init__(self, target: Llama, ids: Tensor) -> None:
        self._embedding = target.model.embed_tokens.weight.detach().to(product_type())  # [V, D]
        self._norm = target.model.norm
        self._known = self._embedding[ids.long()]  # [W, D]

    def embed(self, tokens: Tensor) -> Tensor:
        """[N] -> [N, D]."""
        return self._embedding[tokens]

    @torch.no_grad()
    def logits(self, last_taps: Tensor) -> Tensor:
        """[N, D] -> float32 [N, W]."""
        return functional.linear(self._norm(last_taps.to(self._known.dtype)), self._known).float()


class HeadTrainer:
    """A head in training; `loop` knows the share of the time that is spent."""

    def __init__(
        self, head: DraftHead, teacher: TargetVocabulary, optimizer: Optimizer, loop: TrainingLoop
    ) -> None:
        self._head = head.train()
        self._teacher = teacher
        self._optimizer = optimizer
        self._loop = loop

    def take_step(self, batch: HeadBatch) -> StepFigures:
        """Learn from a batch."""
        figures = learn_head_batch(self._head, self._teacher, batch)
        nn.utils.clip_grad_norm_(self._head.parameters(), GRADIENT_LIMIT)
        self._optimizer.step(rate_factor(self._loop.progress.step, self._loop.share, WARMUP_STEPS))
        return StepFigures(len(batch.tokens), figures)


def learn_head_batch(head: DraftHead, teacher: TargetVocabulary, batch: HeadBatch) -> dict[str, float]:
    """Add the gradients of the weighted mean loss; return the losses, and how often each draft agrees where
    those before it do."""
    lesson = _Lesson(head, teacher, batch)
    places = torch.arange(len(batch.tokens))
    right = torch.ones(len(places), dtype=torch.bool)
    figures: dict[str, float] = {}
    outs, gradients = [], []
    with fast_products():
        state = head.first_state(batch.taps.to(product_type()))
        for step in range(UNROLLED_STEPS):
            left = places + step + 1 <= batch.last[places]
            places, state, right = places[left], state[left], right[left]
            if not len(places):
                break
            state, out = head.advance(state, teacher.embed(batch.tokens[places + step]))
            found = lesson.teach(out, places + step + 1, right, STEP_WEIGHT**step)
            outs.append(out)
            gradients.append(found.gradient)
            before = right.sum().item()
            right = found.agreed & right
            figures[f"loss{step + 1}"] = found.loss
            figures[f"hit{step + 1}"] = right.sum().item() / before if before else 0.0
    torch.autograd.backward(outs, gradients)
    return figures


@dataclass(frozen=True, slots=True)
class _Taught:
    gradient: Tensor  # [n, d], at the outputs
    agreed: Tensor  # bool [n]
    loss: float


class _Lesson:
    """The target's distributions at the places of a batch, [N, W] at the rows' temperatures.

    Most of a step's time goes to passes over logits, so they are made in pieces that stay in the cache.
    """

    def __init__(self, head: DraftHead, teacher: TargetVocabulary, batch: HeadBatch) -> None:
        self._head = head
        self._count = len(batch.tokens)
        self._temperatures = batch.temperatures[:, None]
        self._scales = torch.where(self._temperatures > 0, self._temperatures, GREEDY_TEMPERATURE)
        # rows meet windows of one sequence of noise: a matrix of it would take as long as all drafts
        width = head.shape.draft_vocab_size
        noise = torch.empty(width + NOISE_WINDOWS).exponential_().log_().neg_()
        self._noise = noise.unfold(0, width, 1)  # [NOISE_WINDOWS + 1, W]
        self._windows = torch.randint(NOISE_WINDOWS + 1, (self._count,))
        self._drawn = torch.empty(self._count, dtype=torch.int64)
        self._wanted = torch.empty(self._count, width, dtype=torch.bfloat16)
        for places in torch.split(torch.arange(self._count), ROWS_IN_CACHE):
            logits = teacher.logits(batch.taps[places, -1])
            self._drawn[places] = self._draw(logits, places)
            self._wanted[places] = logits.div_(self._scales[places]).softmax(-1).bfloat16()
        self._drawn.masked_fill_(
            ~torch.isin(batch.tokens, head.ids), -1
        )  # a head that is right knows the token

    def teach(self, out: Tensor, places: Tensor, right: Tensor, weight: float) -> _Taught:
        """Add the gradients of the head's last parts for outputs [n, d] that draft the tokens at `places`."""
        below = out.detach().requires_grad_()
        logits = self._head.head(below)
        with torch.no_grad():
            gradient = torch.empty_like(logits)
            agreed = torch.empty(len(places), dtype=torch.bool)
            loss = 0.0
            for rows in torch.split(torch.arange(len(places)), ROWS_IN_CACHE):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                at, said = places[part], logits[part].float()
                agreed[part] = self._draw(said, at) == self._drawn[at]
                scales, wanted = self._scales[at], self._wanted[at].float()
                said = said.div_(scales).log_softmax(-1)
                loss -= (wanted * said).sum().item() / len(places)
                gradient[part] = said.exp_().sub_(wanted).mul_(weight / self._count / scales)
        logits.backward(gradient)
        sure = self._head.confidence(below)[right]
        missed = functional.binary_cross_entropy_with_logits(sure, agreed[right].float(), reduction="sum")
        (missed * (CONFIDENCE_WEIGHT / self._count)).backward()  # type: ignore[no-untyped-call]
        assert below.grad is not None
        return _Taught(below.grad, agreed, loss)

    def _draw(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return what is drawn of `logits` [n, W] with the noise of `places`, greedily at temperature 0."""
        noise = self._noise[self._windows[places]].mul_(self._temperatures[places])
        return noise.add_(logits).argmax(-1)
