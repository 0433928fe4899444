"""`penstock router train` makes a classifier and says how often it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.router.router import main
from shared.files.difficulty_head import read_difficulty_head
from shared.retrieval.encoders.embedder import MODEL_NAME, Embedder

HARD = "Prove that the sum of {n} odd primes cannot be written as a square, step by step."
EASY = "What colour is the {n}th house in the street?"


def write_examples(file: Path, count: int) -> None:
    rows = [{"text": HARD.format(n=n), "label": "hard"} for n in range(count)]
    rows += [{"text": EASY.format(n=n), "label": "easy"} for n in range(count)]
    file.write_text("\n".join(map(json.dumps, rows)))


def test_a_classifier_is_written_and_its_errors_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples, out = tmp_path / "rows.jsonl", tmp_path / "hard.safetensors"
    write_examples(examples, 20)
    assert main(["train", str(examples), "--out", str(out)]) == 0
    head = read_difficulty_head(out)
    vectors = Embedder.load().embed([HARD.format(n=99), EASY.format(n=99)])
    hard, easy = (head.probability(vector.tolist()) for vector in vectors)
    said = capsys.readouterr().out
    assert head.embedder == MODEL_NAME
    assert hard > 0.5 > easy
    assert "of 8 questions held out 0.0% are told wrong at 0.5" in said
    assert "calibration error" in said


def test_what_cannot_be_learned_from_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    assert "cannot be read" in capsys.readouterr().err
