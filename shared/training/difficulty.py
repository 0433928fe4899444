"""Train a classifier of questions: logistic regression on their vectors, its errors on questions held out.

Newton's method on the regularized log loss (iteratively reweighted least squares): exact, no step size, and
milliseconds for a few thousand rows of a few hundred dimensions.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import InvalidRequest
from shared.files.difficulty_head import DifficultyHead

MAX_EXAMPLES_BYTES = 256 << 20
"""The largest file of examples."""
MAX_EXAMPLES = 100_000
"""The most examples that are learned from."""
MAX_EXAMPLE_CHARS = 2000
"""The characters of a text that count: a gateway embeds no more of a question."""
FEWEST_OF_A_LABEL = 10
"""Fewer examples of one label teach nothing, and tell nothing of the errors."""
LABELS: dict[object, int] = {"hard": 1, "easy": 0, "large": 1, "small": 0, 1: 1, 0: 0}
"""The labels of a row; true and false are 1 and 0."""
HELD_OUT_EVERY = 5
"""One in so many examples of each label is held out: it is measured with, and not learned from."""
FOLDS = 5
PENALTIES = (0.1, 0.5, 2.0, 10.0)
"""The strengths of the penalty on weights of which the best is taken, by cross-validation."""
STEPS = 50
CALIBRATION_BINS = 5

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Examples:
    """Texts, and 1 for each that is hard."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Held-out examples with estimates from `low` to `high`: how many, their mean, and how many are hard."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """The errors of a head on examples that it has not learned from.

    `error` is the share that a threshold of 0.5 gets wrong, `base_error` that of always saying the commoner
    label. `log_loss` is in nats, `area` is that under the ROC curve, `calibration_error` the mean distance of
    estimates and shares over the bins, by their counts.
    """

    count: int
    error: float
    base_error: float
    log_loss: float
    area: float
    calibration_error: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True, slots=True)
class TrainedHead:
    head: DifficultyHead
    learned: int
    penalty: float
    held_out: HeldOutErrors


def read_examples(path: Path) -> Examples:
    """Read a line of JSON for each, {"text": …, "label": …}. Raises InvalidRequest, naming file and line."""
    try:
        if path.stat().st_size > MAX_EXAMPLES_BYTES:
            raise InvalidRequest(f"{path} is larger than {MAX_EXAMPLES_BYTES} bytes: give a part of it")
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"the examples {path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the examples {path} are not UTF-8 text") from error
    rows = [_row(line, f"{path}, line {at}") for at, line in enumerate(lines, 1) if line.strip()]
    if len(rows) > MAX_EXAMPLES:
        raise InvalidRequest(f"{path} has {len(rows)} examples: at most {MAX_EXAMPLES} are learned from")
    counts = [sum(label == each for _, label in rows) for each in (0, 1)]
    if min(counts) < FEWEST_OF_A_LABEL:
        raise InvalidRequest(
            f"{path} has {counts[1]} hard and {counts[0]} easy examples: give at least {FEWEST_OF_A_LABEL} "
            "of each"
        )
    return Examples(tuple(text for text, _ in rows), tuple(label for _, label in rows))


def train_head(
    examples: Examples,
    embed: Callable[[Sequence[str]], npt.NDArray[np.float32]],
    embedder: str,
    *,
    seed: int = 0,
) -> TrainedHead:
    """Learn from four of five examples and measure with the fifth. `embed` gives unit vectors, one a text."""
    vectors = np.asarray(embed(examples.texts), np.float64)
    labels = np.array(examples.labels, np.float64)
    places = _stratified(labels, HELD_OUT_EVERY, np.random.default_rng(seed))
    held_out = places == 0
    learned, known = vectors[~held_out], labels[~held_out]
    penalty = min(PENALTIES, key=lambda each: _cross_validated_loss(learned, known, each, seed))
    weights = fit_logistic(learned, known, penalty)
    head = DifficultyHead(embedder, array("f", weights[:-1].astype(np.float32).tolist()), float(weights[-1]))
    found = _probabilities(vectors[held_out], weights)
    return TrainedHead(head, len(known), penalty, errors_of(found, labels[held_out]))


def fit_logistic(vectors: Numbers, labels: Numbers, penalty: float) -> Numbers:
    """Return [dimensions + 1] weights, the bias last, which minimizes the summed log loss and half the
    `penalty` times the squared weights; the bias is not penalized."""
    if len(vectors) < vectors.shape[1]:  # fewer rows than dimensions span so few of them
        basis, coordinates = np.linalg.qr(vectors.T)
        inside = fit_logistic(coordinates.T, labels, penalty)
        return np.append(basis @ inside[:-1], inside[-1])
    rows = np.hstack([vectors, np.ones((len(vectors), 1))])
    ridge = np.full(rows.shape[1], penalty)
    ridge[-1] = 1e-9
    weights = np.zeros(rows.shape[1])
    for _ in range(STEPS):
        likely = _sigmoid(rows @ weights)
        gradient = rows.T @ (likely - labels) + ridge * weights
        curvature = (rows * (likely * (1 - likely))[:, None]).T @ rows + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        weights -= step
        if float(np.abs(step).max()) < 1e-8:
            break
    return weights


def errors_of(found: Numbers, labels: Numbers) -> HeldOutErrors:
    """Compare estimates with what is so."""
    hard = float(labels.mean())
    bins = tuple(_bins(found, labels))
    distance = sum(each.count * abs(each.predicted - each.observed) for each in bins) / len(labels)
    return HeldOutErrors(
        count=len(labels),
        error=float(((found > 0.5) != (labels > 0.5)).mean()),
        base_error=min(hard, 1 - hard),
        log_loss=_log_loss(found, labels),
        area=_area(found, labels),
        calibration_error=distance,
        bins=bins,
    )


def _row(line: str, place: str) -> tuple[str, int]:
    wanted = '{"text": "…", "label": "hard"}, or "easy"'
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{place} is no JSON: write {wanted}") from error
    text, label = (row.get("text"), row.get("label")) if isinstance(row, dict) else (None, None)
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequest(f"{place} has no text: write {wanted}")
    if not isinstance(label, str | int) or label not in LABELS:
        raise InvalidRequest(f"{place} has no label that is known: write {wanted}")
    return text[:MAX_EXAMPLE_CHARS], LABELS[label]


def _stratified(labels: Numbers, parts: int, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return for each example which of `parts` it is in, each with its share of both labels."""
    places = np.empty(len(labels), np.int64)
    for label in (0, 1):
        (of_label,) = np.nonzero(labels == label)
        places[chance.permutation(of_label)] = np.arange(len(of_label)) % parts
    return places


def _cross_validated_loss(vectors: Numbers, labels: Numbers, penalty: float, seed: int) -> float:
    places = _stratified(labels, FOLDS, np.random.default_rng(seed + 1))
    found = np.empty(len(labels))
    for fold in range(FOLDS):
        rest = places != fold
        found[~rest] = _probabilities(vectors[~rest], fit_logistic(vectors[rest], labels[rest], penalty))
    return _log_loss(found, labels)


def _probabilities(vectors: Numbers, weights: Numbers) -> Numbers:
    return _sigmoid(vectors @ weights[:-1] + weights[-1])


def _sigmoid(logits: Numbers) -> Numbers:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -500, 500))))


def _log_loss(found: Numbers, labels: Numbers) -> float:
    sure = np.clip(found, 1e-12, 1 - 1e-12)
    return float(-(labels * np.log(sure) + (1 - labels) * np.log(1 - sure)).mean())


def _area(found: Numbers, labels: Numbers) -> float:
    """Return how often a hard example has the higher estimate of two; equal ones count half."""
    differences = found[labels == 1][:, None] - found[labels == 0][None, :]
    return float((differences > 0).mean() + (differences == 0).mean() / 2)


def _bins(found: Numbers, labels: Numbers) -> list[CalibrationBin]:
    places = np.minimum((found * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    return [
        CalibrationBin(
            place / CALIBRATION_BINS,
            (place + 1) / CALIBRATION_BINS,
            int(inside.sum()),
            float(found[inside].mean()),
            float(labels[inside].mean()),
        )
        for place in range(CALIBRATION_BINS)
        if (inside := places == place).any()
    ]
