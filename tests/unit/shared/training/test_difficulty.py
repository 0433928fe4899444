"""A head learns what can be learned, and is measured with what it has not seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from shared.errors import InvalidRequest
from shared.files.word_features import MAX_READ_CHARS
from shared.training.difficulty import (
    FEWEST_OF_A_LABEL,
    Examples,
    cross_validated_errors,
    errors_of,
    fit_logistic,
    read_examples,
    train_head,
    train_word_head,
    word_vectors,
)

DIMENSIONS = 8


def examples_of(count: int, seed: int = 0) -> tuple[Examples, npt.NDArray[np.float64]]:
    """Texts that are numbers, whose label is drawn by the logistic of a known direction."""
    chance = np.random.default_rng(seed)
    vectors = chance.normal(size=(count, DIMENSIONS)) / DIMENSIONS**0.5
    likely = 1 / (1 + np.exp(-6 * vectors[:, 0]))
    labels = (chance.random(count) < likely).astype(int)
    return Examples(tuple(map(str, range(count))), tuple(labels.tolist())), vectors


def trained_on(count: int, *, shuffled: bool = False):  # type: ignore[no-untyped-def]
    examples, vectors = examples_of(count)
    if shuffled:
        labels = np.random.default_rng(9).permutation(np.array(examples.labels))
        examples = Examples(examples.texts, tuple(labels.tolist()))

    def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return vectors[[int(text) for text in texts]].astype(np.float32)

    return train_head(examples, embed, "e")


def test_of_fewer_rows_than_dimensions_the_least_loss_is_found_too() -> None:
    examples, vectors = examples_of(DIMENSIONS - 2)
    labels = np.array(examples.labels, np.float64)
    found = fit_logistic(vectors, labels, 1.0)
    gradient = vectors.T @ (1 / (1 + np.exp(-(vectors @ found[:-1] + found[-1]))) - labels) + found[:-1]
    assert gradient == pytest.approx(np.zeros(DIMENSIONS), abs=1e-6)


def test_the_fit_is_the_least_of_its_loss() -> None:
    examples, vectors = examples_of(200)
    labels = np.array(examples.labels, np.float64)

    def loss(weights: npt.NDArray[np.float64]) -> float:
        logits = vectors @ weights[:-1] + weights[-1]
        return float(np.logaddexp(0, logits).sum() - labels @ logits + 0.5 * (weights[:-1] ** 2).sum())

    best = fit_logistic(vectors, labels, 1.0)
    for at in range(DIMENSIONS + 1):
        for by in (-0.01, 0.01):
            other = best.copy()
            other[at] += by
            assert loss(other) > loss(best)


def test_what_can_be_told_is_told_and_the_estimates_are_calibrated() -> None:
    errors = trained_on(2000).held_out
    assert errors.count == pytest.approx(400, abs=1)
    assert errors.error < errors.base_error - 0.1
    assert errors.area > 0.75
    assert errors.calibration_error < 0.08


def test_of_labels_that_mean_nothing_the_held_out_error_says_so() -> None:
    errors = trained_on(400, shuffled=True).held_out
    assert errors.area == pytest.approx(0.5, abs=0.15)
    assert errors.error >= errors.base_error - 0.1


def test_errors_are_counted_by_hand() -> None:
    errors = errors_of(np.array([0.9, 0.8, 0.3, 0.1]), np.array([1.0, 0.0, 1.0, 0.0]))
    assert (errors.error, errors.base_error, errors.area) == (0.5, 0.5, 0.75)
    assert [(each.count, each.observed) for each in errors.bins] == [(1, 0.0), (1, 1.0), (2, 0.5)]
    assert errors.calibration_error == pytest.approx((0.1 + 0.7 + 2 * 0.35) / 4)


def rows(*labels: object, text: object = "Why?") -> str:
    return "\n".join(json.dumps({"text": text, "label": label}) for label in labels)


def test_rows_have_their_labels_in_words_or_numbers(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    each = FEWEST_OF_A_LABEL // 2
    file.write_text(rows(*["hard", 1] * each, *["easy", False] * each, text="x" * (MAX_READ_CHARS + 1)))
    read = read_examples(file)
    assert (sum(read.labels), len(read.labels)) == (2 * each, 4 * each)
    assert set(map(len, read.texts)) == {MAX_READ_CHARS}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "line 1 is no JSON"),
        ("3", "line 1 has no text"),
        (rows("hard", text=" "), "line 1 has no text"),
        (rows("hard", "harder"), "line 2 has no label"),
        (rows("hard", [1]), "line 2 has no label"),
        (rows(*["hard"] * 30, *["easy"] * (FEWEST_OF_A_LABEL - 1)), "30 hard and 9 easy"),
    ],
)
def test_a_file_that_teaches_nothing_is_refused_with_its_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=sentence):
        read_examples(file)


def told_by_words(count: int) -> Examples:
    """Questions of which one word tells the hard ones, nine times of ten."""
    chance = np.random.default_rng(5)
    labels = (chance.random(count) < 0.5).astype(int).tolist()
    words = ["prove" if bool(label) != (chance.random() < 0.1) else "name" for label in labels]
    return Examples(tuple(f"Please {word} number {n % 7}." for n, word in enumerate(words)), tuple(labels))


def test_a_head_that_reads_words_learns_the_words_that_tell() -> None:
    trained = train_word_head(told_by_words(300))
    assert trained.head.reads_words
    assert trained.head.probability_of("Prove number 3!") > 0.8
    assert trained.head.probability_of("name number 99") < 0.2
    assert trained.held_out.error < 0.2


def test_errors_of_all_examples_are_of_what_was_learned_from_the_others() -> None:
    examples = told_by_words(300)
    errors = cross_validated_errors(examples, word_vectors(examples.texts)[1])
    assert errors.count == 300
    assert 0.03 < errors.error < 0.2
    shuffled = Examples(examples.texts, tuple(np.random.default_rng(2).permutation(examples.labels).tolist()))
    assert cross_validated_errors(shuffled, word_vectors(examples.texts)[1]).area < 0.65
