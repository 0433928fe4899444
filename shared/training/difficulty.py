"""Train a classifier of questions: logistic regression on their vectors or words, its errors on questions
held out.

Newton's method on the regularized log loss (iteratively reweighted least squares): exact, no step size, and
milliseconds for a few thousand rows of a few hundred dimensions.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import InvalidRequest
from shared.files.difficulty_head import DifficultyHead
from shared.files.word_features import MAX_READ_CHARS, WORD_FEATURES, WORD_PLACES, word_features

MAX_EXAMPLES_BYTES = 256 << 20
"""The largest file of examples."""
MAX_EXAMPLES = 100_000
"""The most examples that are learned from."""
FEWEST_OF_A_LABEL = 10
"""Fewer examples of one label teach nothing, and tell nothing of the errors."""
LABELS: dict[object, int] = {"hard": 1, "easy": 0, "large": 1, "small": 0, 1: 1, 0: 0}
"""The labels of a row; true and false are 1 and 0."""
HELD_OUT_EVERY = 5
"""One in so many examples of each label is held out: it is measured with, and not learned from."""
FOLDS = 5
PENALTIES = (0.1, 0.5, 2.0, 10.0)
"""The strengths of the penalty on weights of which the best is taken, by cross-validation."""
MOST_PLACES = 2048
"""Weights are learned for so many places of words, the commonest ones that more than one text has."""
STEPS = 50
NEARLY = 1e-3
"""The part of a gradient that a step of Newton's method may leave where it is not solved at once."""
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


def train_word_head(examples: Examples, *, seed: int = 0) -> TrainedHead:
    """Learn as `train_head` does from the words of the texts."""
    places, vectors = word_vectors(examples.texts)
    trained = train_head(examples, lambda _: vectors, WORD_FEATURES, seed=seed)
    weights = array("f", bytes(4 * WORD_PLACES))
    for place, weight in zip(places, trained.head.weights, strict=True):
        weights[place] = weight
    return replace(trained, head=replace(trained.head, weights=weights))


def word_vectors(texts: Sequence[str]) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Return the places of words that are learned, and what the texts have there, [texts, places]."""
    found = list(map(word_features, texts))
    counts = Counter(place for each in found for place in each)
    places = sorted(place for place, count in counts.most_common(MOST_PLACES) if count > 1)
    columns = {place: column for column, place in enumerate(places)}
    vectors = np.zeros((len(texts), len(places)), np.float32)
    for row, each in zip(vectors, found, strict=True):
        for place, value in each.items():
            if place in columns:
                row[columns[place]] = value
    return places, vectors


def cross_validated_errors(
    examples: Examples, vectors: npt.NDArray[np.float32], *, seed: int = 0
) -> HeldOutErrors:
    """Return the errors on all examples, each estimated by what was learned from four of five others."""
    rows, labels = np.asarray(vectors, np.float64), np.array(examples.labels, np.float64)
    found = min(
        (_cross_estimates(rows, labels, each, seed) for each in PENALTIES),
        key=lambda each: _log_loss(each, labels),
    )
    return errors_of(found, labels)


def fit_logistic(vectors: Numbers, labels: Numbers, penalty: float) -> Numbers:
    """Return [dimensions + 1] weights, the bias last, which minimizes the summed log loss and half the
    `penalty` times the squared weights; the bias is not penalized."""
    rows = np.hstack([vectors, np.ones((len(vectors), 1))])
    ridge = np.full(rows.shape[1], penalty)
    ridge[-1] = 1e-9
    weights = np.zeros(rows.shape[1])
    for _ in range(STEPS):
        likely = _sigmoid(rows @ weights)
        gradient = rows.T @ (likely - labels) + ridge * weights
        step = _newton_step(rows, likely * (1 - likely), ridge, gradient)
        weights -= step
        if float(np.abs(step).max()) < 1e-8:
            break
    return weights


def _newton_step(rows: Numbers, curvatures: Numbers, ridge: Numbers, gradient: Numbers) -> Numbers:
    """Solve (rows' curvatures rows + ridge) step = gradient: at once, or for more dimensions than rows by
    conjugate gradients, as nearly as the next step needs it."""
    if len(rows) >= rows.shape[1]:
        curvature = (rows * curvatures[:, None]).T @ rows + np.diag(ridge)
        return np.asarray(np.linalg.solve(curvature, gradient), np.float64)
    step = np.zeros_like(gradient)
    left = gradient.copy()
    direction, square = left.copy(), float(left @ left)
    enough = square * NEARLY**2
    for _ in range(len(rows)):
        if square <= enough:
            break
        ahead = rows.T @ (curvatures * (rows @ direction)) + ridge * direction
        length = square / float(direction @ ahead)
        step += length * direction
        left -= length * ahead
        before, square = square, float(left @ left)
        direction = left + (square / before) * direction
    return step


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
    return text[:MAX_READ_CHARS], LABELS[label]


def _stratified(labels: Numbers, parts: int, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return for each example which of `parts` it is in, each with its share of both labels."""
    places = np.empty(len(labels), np.int64)
    for label in (0, 1):
        (of_label,) = np.nonzero(labels == label)
        places[chance.permutation(of_label)] = np.arange(len(of_label)) % parts
    return places


def _cross_validated_loss(vectors: Numbers, labels: Numbers, penalty: float, seed: int) -> float:
    return _log_loss(_cross_estimates(vectors, labels, penalty, seed), labels)


def _cross_estimates(vectors: Numbers, labels: Numbers, penalty: float, seed: int) -> Numbers:
    """Estimate each example by what is learned from those of the other folds."""
    places = _stratified(labels, FOLDS, np.random.default_rng(seed + 1))
    found = np.empty(len(labels))
    for fold in range(FOLDS):
        rest = places != fold
        found[~rest] = _probabilities(vectors[~rest], fit_logistic(vectors[rest], labels[rest], penalty))
    return found


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
