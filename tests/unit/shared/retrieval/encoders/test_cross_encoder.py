"""Cross-encoders of Hugging Face directories against transformers, on random weights."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from shared.errors import InvalidRequest, NotFound, TooLarge
from shared.retrieval.encoders import cross_encoder
from shared.retrieval.encoders.cross_encoder import CrossEncoder
from shared.retrieval.encoders.model_files import find_model_files
from tests.support.made_once import MadeOnce

SHAPE: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 80,
}
QUESTION = "Which port does the gate have?"
PASSAGES = ["The gate has port 7.", "Soup is made of water.", "?", "the gate " * 100]


MADE = MadeOnce("cross-encoders")


def saved(folder: Path, kind: str, labels: int) -> Path:
    """A copy of a model with the tokenizer of MiniLM."""
    MADE.copy(f"{kind} {labels}", folder, partial(save, kind, labels))
    return folder


def save(kind: str, labels: int, folder: Path) -> None:
    torch.manual_seed(labels)
    shape = {**SHAPE, "num_labels": labels}
    if kind == "bert":
        model: Any = BertForSequenceClassification(BertConfig(**shape))
    else:
        # The tokenizer makes kinds 0 and 1, and both count from position pad_token_id + 1.
        config = XLMRobertaConfig(**shape, pad_token_id=0, type_vocab_size=2)
        model = XLMRobertaForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    Tokenizer.from_file(str(find_model_files().tokenizer)).save(str(folder / "tokenizer.json"))


def oracle(folder: Path, max_tokens: int) -> list[float]:
    load: Any = PreTrainedTokenizerFast
    tokenizer = load(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.train(mode=False)
    scores = []
    for passage in PASSAGES:
        pair = tokenizer(
            QUESTION, passage, truncation="longest_first", max_length=max_tokens, return_tensors="pt",
            return_token_type_ids=True,
        )  # fmt: skip
        with torch.inference_mode():
            logits = model(**pair).logits[0]
        scores.append(float(logits[0] if len(logits) == 1 else logits[1] - logits[0]))
    return scores


@pytest.mark.parametrize(("kind", "labels"), [("bert", 1), ("bert", 2), ("xlm-roberta", 1)])
def test_scores_are_those_of_transformers(tmp_path: Path, kind: str, labels: int) -> None:
    folder = saved(tmp_path, kind, labels)
    most = 80 if kind == "bert" else 79  # positions; RoBERTa's begin behind that of padding
    found = CrossEncoder.load(folder, arithmetic="float32").score_texts(QUESTION, PASSAGES)
    assert found.scores == pytest.approx(oracle(folder, most), rel=1e-3, abs=1e-4)
    assert found.tokens[-1] == most
    assert found.truncated == [False, False, False, True]


def test_it_counts_alone_and_is_known_by_its_folder(tmp_path: Path) -> None:
    reranker = CrossEncoder.load(saved(tmp_path, "bert", 1))
    assert reranker.weight(QUESTION) is None
    assert reranker.name == tmp_path.name


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused(tmp_path: Path, missing: str) -> None:
    (saved(tmp_path, "bert", 1) / missing).unlink()
    with pytest.raises(NotFound, match=missing):
        CrossEncoder.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "can be read"),
        ("config.json", b"[]", "no sequence classification"),
        ("model.safetensors", b"\xff" * 32, "can be read"),
        ("tokenizer.json", b"{}", "no tokenizer"),
    ],
)
def test_a_file_that_is_no_such_models_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (saved(tmp_path, "bert", 1) / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=message):
        CrossEncoder.load(tmp_path)


@pytest.mark.parametrize(
    ("labels", "change", "message"),
    [
        (3, {}, "classifier is missing or has no"),
        (1, {"architectures": ["BertModel"]}, "no sequence classification"),
        (1, {"model_type": "xlm-roberta"}, "classifier.dense"),
    ],
)
def test_a_model_with_another_head_is_refused(
    tmp_path: Path, labels: int, change: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path, "bert", labels) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidRequest, match=message):
        CrossEncoder.load(tmp_path)


def test_a_file_over_its_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "bert", 1)
    size = (tmp_path / "model.safetensors").stat().st_size
    monkeypatch.setattr(cross_encoder, "MAX_WEIGHTS_BYTES", size)
    CrossEncoder.load(tmp_path)
    monkeypatch.setattr(cross_encoder, "MAX_WEIGHTS_BYTES", size - 1)
    with pytest.raises(TooLarge, match=f"limit of {size - 1} bytes"):
        CrossEncoder.load(tmp_path)
