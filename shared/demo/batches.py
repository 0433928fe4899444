"""Training batches: book windows, repeated random spans, and packed question answering."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from shared.demo.examples import Example, make_example
from shared.demo.invent import Inventor
from shared.demo.prompt import END, SPECIAL_TOKENS

ANSWER_WEIGHT = 1.0
QUESTION_WEIGHT = 0.1
QUESTION_TOKENS = 12
UNLEARNED_COPY_TOKENS = 3
QUEUED_BATCHES = 8
PUT_TIMEOUT_S = 0.5

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """B rows of T inputs and their targets; only positions of weight > 0 are learned from.

    `answers` holds, per learned position, the number of the answer it belongs to, or -1.
    """

    ids: Tensor  # [B, T] int64
    positions: Tensor  # [N] int64, into the flattened [B * T]
    targets: Tensor  # [N] int64
    weights: Tensor  # [N] fp32
    answers: Tensor  # [N] int64


def book_batch(
    tokens: NDArray[np.uint16], rows: int, length: int, random: np.random.Generator
) -> TrainingBatch:
    """Random windows of the books, every position learned from."""
    starts = random.integers(0, len(tokens) - length - 1, size=rows)
    window = np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    return _dense(window, np.ones((rows, length), dtype=np.float32))


def copy_batch(vocabulary: int, rows: int, length: int, random: np.random.Generator) -> TrainingBatch:
    """Random spans said several times, with noise of the same tokens between; only repeats are learned from.

    Copying takes an induction head. Alphabets of a dozen tokens are among them: there one token of context
    does not tell where to go on, so the head learns to compare several.
    """
    window = np.empty((rows, length + 1), dtype=np.int64)
    weights = np.zeros((rows, length), dtype=np.float32)
    for row in range(rows):
        filled = 0
        while filled < length + 1:
            alphabet = random.integers(len(SPECIAL_TOKENS), vocabulary, size=2 ** int(random.integers(4, 11)))
            span = random.choice(alphabet, size=random.integers(6, 48))
            for turn in range(random.integers(2, 5)):
                stop = min(filled + len(span), length + 1)
                window[row, filled:stop] = span[: stop - filled]
                if turn:
                    weights[row, filled + UNLEARNED_COPY_TOKENS - 1 : max(filled, stop - 1)] = 1.0
                filled = min(stop + int(random.integers(0, 16)), length + 1)
                window[row, stop:filled] = random.choice(alphabet, size=filled - stop)
    return _dense(window, weights)


def joined(one: TrainingBatch, other: TrainingBatch) -> TrainingBatch:
    """The rows of both, which must be of one length."""
    return TrainingBatch(
        ids=torch.cat((one.ids, other.ids)),
        positions=torch.cat((one.positions, other.positions + one.ids.numel())),
        targets=torch.cat((one.targets, other.targets)),
        weights=torch.cat((one.weights, other.weights)),
        answers=torch.cat((one.answers, other.answers)),
    )


def _dense(window: NDArray[np.int64], weights: NDArray[np.float32]) -> TrainingBatch:
    positions = np.flatnonzero(weights)
    return TrainingBatch(
        ids=torch.from_numpy(window[:, :-1].copy()),
        positions=torch.from_numpy(positions),
        targets=torch.from_numpy(window[:, 1:].reshape(-1)[positions]),
        weights=torch.from_numpy(weights.reshape(-1)[positions]),
        answers=torch.zeros(len(positions), dtype=torch.int64) - 1,
    )


def example_ids(example: Example, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Prompt ids and answer ids (with <|end|>)."""
    prompt = tokenizer.encode(example.prompt, add_special_tokens=False)
    answer = tokenizer.encode(example.answer + END, add_special_tokens=False)
    return prompt.ids, answer.ids


def conversation_ids(example: Example, tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """The same for every turn of the conversation."""
    turns = [example_ids(example, tokenizer)]
    for question, answer in example.follow_ups:
        prompt = tokenizer.encode(question, add_special_tokens=False)
        turns.append((prompt.ids, tokenizer.encode(answer + END, add_special_tokens=False).ids))
    return turns


@dataclass(slots=True)
class ExamplePacker:
    """Packs several conversations into each row, so that no position is padding except at row ends.

    The context is not learned from: it is made up, so its loss is noise that would drown the answers'.
    """

    tokenizer: Tokenizer
    inventor: Inventor
    max_facts: int
    max_fillers: int

    def batch(self, rows: int, length: int) -> TrainingBatch:
        """Answers at full weight, the end of the question at a lower one."""
        window = np.zeros((rows, length + 1), dtype=np.int64)
        weights = np.zeros((rows, length + 1), dtype=np.float32)
        answers = np.full((rows, length + 1), -1, dtype=np.int64)
        count = 0
        for row in range(rows):
            filled = 0
            while filled < length - 48:
                turns = self._fitting(length + 1 - filled)
                if not turns:
                    break
                for prompt, answer in turns:
                    middle, stop = filled + len(prompt), filled + len(prompt) + len(answer)
                    window[row, filled:middle] = prompt
                    window[row, middle:stop] = answer
                    weights[row, max(filled, middle - QUESTION_TOKENS) : middle - 2] = QUESTION_WEIGHT
                    weights[row, middle:stop] = ANSWER_WEIGHT
                    answers[row, middle:stop] = count
                    count += 1
                    filled = stop
        learned = weights[:, 1:].reshape(-1)
        positions = np.flatnonzero(learned)
        return TrainingBatch(
            ids=torch.from_numpy(window[:, :-1].copy()),
            positions=torch.from_numpy(positions),
            targets=torch.from_numpy(window[:, 1:].reshape(-1)[positions]),
            weights=torch.from_numpy(learned[positions]),
            answers=torch.from_numpy(answers[:, 1:].reshape(-1)[positions]),
        )

    def _fitting(self, room: int) -> list[tuple[list[int], list[int]]]:
        """The turns of a conversation that fit into `room` tokens; tried with ever fewer sentences."""
        facts = self.inventor.random.randint(1, self.max_facts)
        fillers = self.inventor.random.randint(0, self.max_fillers)
        for _ in range(5):
            turns = conversation_ids(make_example(self.inventor, facts, fillers), self.tokenizer)
            ends = np.cumsum([len(prompt) + len(answer) for prompt, answer in turns])
            fitting = int((ends <= room).sum())
            if fitting:
                return turns[:fitting]
            facts, fillers = max(1, facts // 2), fillers // 2
        return []


class Prefetch(Generic[Made]):
    """Runs `make` in a thread, a few batches ahead. Use as a context manager."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._queue: Queue[Made | BaseException] = Queue(QUEUED_BATCHES)
        self._stop = Event()
        self._thread = Thread(target=self._run, name="batches", daemon=True)

    def __enter__(self) -> Iterator[Made]:
        self._thread.start()
        return self._batches()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _batches(self) -> Iterator[Made]:
        while True:
            item = self._queue.get(timeout=120)
            if isinstance(item, BaseException):
                raise item
            yield item

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                item: Made | BaseException = self._make()
            except Exception as error:  # noqa: BLE001 - handed to the consumer, which raises it
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=PUT_TIMEOUT_S)
                    break
                except Full:
                    continue
            if isinstance(item, BaseException):
                return
