"""`penstock router train` makes a classifier and says how often it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.router.router import main
from services.cli.router.train import EMBEDDING, READS, WORDS
from shared.files.difficulty_head import read_difficulty_head
from shared.files.word_features import WORD_FEATURES
from shared.retrieval.encoders.embedder import MODEL_NAME, Embedder

HARD = "Prove that the sum of {n} odd primes cannot be written as a square, step by step."
EASY = "What colour is the {n}th house in the street?"


def write_examples(file: Path, count: int) -> None:
    rows = [{"text": HARD.format(n=n), "label": "hard"} for n in range(count)]
    rows += [{"text": EASY.format(n=n), "label": "easy"} for n in range(count)]
    file.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.thorough(but=WORDS)
@pytest.mark.parametrize("reads", READS)
def test_a_classifier_is_written_and_its_errors_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: str
) -> None:
    examples, out = tmp_path / "rows.jsonl", tmp_path / "hard.safetensors"
    write_examples(examples, 20)
    assert main(["train", str(examples), "--out", str(out), "--reads", reads]) == 0
    head = read_difficulty_head(out)
    texts = [HARD.format(n=99), EASY.format(n=99)]
    if reads == WORDS:
        hard, easy = map(head.probability_of, texts)
    else:
        hard, easy = (head.probability(vector.tolist()) for vector in Embedder.load().embed(texts))
    said = capsys.readouterr().out
    assert head.embedder == {WORDS: WORD_FEATURES, EMBEDDING: MODEL_NAME}[reads]
    assert hard > 0.5 > easy
    assert "of 8 questions held out 0.0% are told wrong at 0.5" in said
    assert "calibration error" in said
    assert [line.split()[:2] for line in said.splitlines()[-2:]] == [[WORDS, "0.0%"], [EMBEDDING, "0.0%"]]


def test_what_cannot_be_learned_from_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    assert "cannot be read" in capsys.readouterr().err
