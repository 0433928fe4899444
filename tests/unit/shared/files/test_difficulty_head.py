"""A classifier's file is what the library of its format reads, and what is none is refused."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from shared.errors import InvalidRequest
from shared.files.difficulty_head import (
    MAX_HEAD_BYTES,
    DifficultyHead,
    read_difficulty_head,
    write_difficulty_head,
)
from shared.files.word_features import WORD_FEATURES, WORD_PLACES, word_features

HEAD = DifficultyHead("all-MiniLM-L6-v2", array("f", [0.5, -2.0, 0.25]), -0.125)


def test_what_is_written_is_read_and_the_library_reads_it_too(tmp_path: Path) -> None:
    file = tmp_path / "hard.safetensors"
    write_difficulty_head(file, HEAD)
    assert read_difficulty_head(file) == HEAD
    with safe_open(file, "numpy") as opened:
        assert opened.metadata() == {"bias": "-0.125", "embedder": HEAD.embedder}
        assert opened.get_tensor("weight").tolist() == HEAD.weights.tolist()


def test_an_estimate_is_the_logistic_of_the_product() -> None:
    logit = 0.5 * 2 - 2.0 * 1 + 0.25 * 4 - 0.125
    assert HEAD.probability([2.0, 1.0, 4.0]) == pytest.approx(1 / (1 + math.exp(-logit)))
    steep = DifficultyHead("e", array("f", [1000.0]), 0.0)
    assert (steep.probability([1.0]), steep.probability([-1.0])) == (1.0, 0.0)


def test_what_is_no_classifier_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hard.safetensors"
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_difficulty_head(file)
    weights = np.ones(3, np.float32)
    told = {"bias": "0.0", "embedder": "e"}
    for tensors, metadata in (
        ({"other": weights}, told),
        ({"weight": weights}, {"bias": "0.0"}),
        ({"weight": weights}, {**told, "bias": "nan"}),
        ({"weight": weights.astype(np.float64)}, told),
        ({"weight": weights.reshape(1, 3)}, told),
        ({"weight": weights * np.inf}, told),
        ({"weight": weights[:0]}, told),
    ):
        save_file(tensors, file, metadata)
        with pytest.raises(InvalidRequest, match="is no classifier"):
            read_difficulty_head(file)
    for data in (b"", b"{}", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 100):
        file.write_bytes(data)
        with pytest.raises(InvalidRequest, match="is no classifier"):
            read_difficulty_head(file)
    file.write_bytes(b"\0" * (MAX_HEAD_BYTES + 1))
    with pytest.raises(InvalidRequest, match="larger than"):
        read_difficulty_head(file)


def test_a_head_of_words_estimates_from_the_text_itself(tmp_path: Path) -> None:
    weights = array("f", bytes(4 * WORD_PLACES))
    found = word_features("Prove it")
    weights[max(found, key=found.__getitem__)] = 8.0
    head = DifficultyHead(WORD_FEATURES, weights, -1.0)
    write_difficulty_head(tmp_path / "words.safetensors", head)
    read = read_difficulty_head(tmp_path / "words.safetensors")
    assert (read, read.reads_words, HEAD.reads_words) == (head, True, False)
    assert read.probability_of("Prove it") == pytest.approx(1 / (1 + math.exp(1 - 8.0 * max(found.values()))))
    assert read.probability_of("") == pytest.approx(1 / (1 + math.exp(1)))


def test_weights_of_other_words_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.safetensors"
    write_difficulty_head(file, DifficultyHead(WORD_FEATURES, array("f", [1.0]), 0.0))
    with pytest.raises(InvalidRequest, match="is no classifier"):
        read_difficulty_head(file)
