"""The encoder against transformers' BertModel on the same weights, and what it finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from shared.engine.native.weight_cache import WeightCache
from shared.errors import ChecksumMismatch, NotFound
from shared.retrieval.encoders.embedder import DIMENSIONS, MAX_TOKENS, Embedder
from shared.retrieval.encoders.model_files import check_model_files, find_model_files
from shared.retrieval.encoders.text_encoder import BATCH_TOKENS
from shared.retrieval.index.build import build_index
from shared.retrieval.index.passage_index import Hit
from tests.support.data import data_dir

TEXTS = [
    "",
    "word",
    "The gate of the penstock opens at dawn.",
    "Où est la porte? 門はどこですか 🙂",
    "a long text " * 300,
    *(f"Passage number {number} speaks of {'this and that ' * (number % 7)}" for number in range(32)),
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.set_num_threads(1)
    return Embedder.load()


def oracle(texts: list[str]) -> torch.Tensor:
    """Vectors as the model's card says: mean of the last hidden states, of length 1."""
    folder = find_model_files().weights.parent
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = BertConfig.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, config=config, add_pooling_layer=False)
    model.train(mode=False)
    vectors = []
    with torch.inference_mode():
        for text in texts:  # each alone: beside the longest, all would be as long
            encoded = tokenizer(text, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            vectors.append(model(**encoded).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(vectors), dim=-1)


def test_vectors_are_those_of_transformers(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    cosines = (torch.from_numpy(vectors) * oracle(TEXTS)).sum(-1)
    assert vectors.shape == (len(TEXTS), DIMENSIONS)
    assert cosines.min() > 0.9999


def test_weights_of_a_file_give_the_same_vectors_to_the_bit(embedder: Embedder, tmp_path: Path) -> None:
    if not embedder.is_native:
        pytest.skip("nothing is packed for torch")
    cache = WeightCache(tmp_path / "weights", 1 << 30)
    for _ in range(2):  # packed for the file, and found there
        mapped = Embedder.load(cache=cache)
        assert len([*(tmp_path / "weights").iterdir()]) == 2
        for _ in range(2):
            assert (mapped.embed(TEXTS) == embedder.embed(TEXTS)).all()
            assert (mapped.embed_passages(TEXTS) == embedder.embed_passages(TEXTS)).all()
            mapped.give_back_pages()


def test_a_cache_that_is_too_small_costs_time_alone(embedder: Embedder, tmp_path: Path) -> None:
    mapped = Embedder.load(cache=WeightCache(tmp_path / "weights", 1 << 20))
    assert (mapped.embed(TEXTS) == embedder.embed(TEXTS)).all()
    mapped.give_back_pages()


def test_passages_of_an_index_have_nearly_the_same_vectors(embedder: Embedder) -> None:
    cosines = (embedder.embed_passages(TEXTS) * embedder.embed(TEXTS)).sum(-1)
    assert cosines.min() > 0.98  # of the empty text; of others 0.99


def test_vectors_have_length_1_and_do_not_depend_on_the_batch(embedder: Embedder) -> None:
    together = embedder.embed(TEXTS[:8])
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    for row, text in enumerate(TEXTS[:8]):
        assert np.allclose(embedder.embed([text])[0], together[row], atol=1e-5)


def test_progress_counts_up_to_all_texts(embedder: Embedder) -> None:
    seen: list[int] = []
    one_batch = BATCH_TOKENS // MAX_TOKENS
    embedder.embed(["a long text " * 100] * one_batch + ["short"], seen.append)
    assert seen == [one_batch, one_batch + 1]


def test_no_texts_make_no_vectors(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, DIMENSIONS)


def test_a_changed_model_file_is_refused(tmp_path: Path) -> None:
    files = find_model_files()
    shutil.copy(files.tokenizer, tmp_path / "tokenizer.json")
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ChecksumMismatch, match="reinstall"):
        check_model_files(tmp_path)
    with pytest.raises(NotFound, match="cannot be read"):
        check_model_files(tmp_path / "nowhere")


QUESTIONS = 200
FOUND_SHARE = 0.85


@pytest.mark.timeout(900)
def test_the_right_passage_is_among_the_best_three(embedder: Embedder, tmp_path: Path) -> None:
    """XQuAD English: 240 passages of Wikipedia, the first 200 questions, each with its passage."""
    data = data_dir()
    if data is None:
        pytest.skip("the XQuAD files are not here")
    folder = tmp_path / "corpus"
    folder.mkdir()
    asked: list[tuple[str, str]] = []
    articles = json.loads((data / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs):
        name = f"{number:03}.txt"
        (folder / name).write_text(paragraph["context"], encoding="utf-8")
        asked += [(question["question"], name) for question in paragraph["qas"]]
    index = build_index(
        str(folder), tmp_path / "state", embedder, lambda *_: None, waiting=lambda _: None
    ).index
    vectors = embedder.embed([question for question, _ in asked[:QUESTIONS]])
    found = [
        _names(hits, name)
        for hits, (_, name) in zip(index.search(vectors, 3), asked[:QUESTIONS], strict=True)
    ]
    assert len(paragraphs) == 240
    assert sum(found) / QUESTIONS >= FOUND_SHARE


def _names(hits: list[Hit], source: str) -> bool:
    return any(hit.source == source for hit in hits)
