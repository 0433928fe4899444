from __future__ import annotations

import json
from pathlib import Path

import bm25s
import numpy as np
import pytest

from shared.errors import ChecksumMismatch
from shared.retrieval.index import lexical
from shared.retrieval.index.lexical import LexicalIndex
from shared.retrieval.index.words import terms_of

TEXTS = ["the gate of the dam", "the soup of the day", "a gate, another gate", "", "水門の鍵"]


@pytest.fixture(params=["built", "loaded"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> LexicalIndex:
    built = LexicalIndex.build(TEXTS)
    if request.param == "built":
        return built
    built.save(tmp_path)
    return LexicalIndex.load(tmp_path)


def rows(index: LexicalIndex, question: str, k: int = 3) -> list[int]:
    found: list[int] = index.search([question], k)[1][0].tolist()
    return found


def test_passages_with_the_words_come_best_first_and_others_not_at_all(index: LexicalIndex) -> None:
    assert len(index) == 5
    scores, found = index.search(["Gates?", "soup", "水門", "nowhere"], 3)
    assert found.tolist() == [[2, 0, -1], [1, -1, -1], [4, -1, -1], [-1, -1, -1]]
    assert scores.shape == (4, 3)
    assert scores.dtype == np.float32
    assert scores[0, 0] > scores[0, 1] > scores[0, 2] == 0


def test_equal_passages_come_in_their_order() -> None:
    index = LexicalIndex.build(["same"] * 100)
    assert rows(index, "same", 4) == [0, 1, 2, 3]


def test_more_is_asked_for_than_there_is(index: LexicalIndex) -> None:
    assert rows(index, "dam", 9) == [0] + [-1] * 8


def test_what_is_not_allowed_is_not_found(index: LexicalIndex) -> None:
    allowed = np.array([True, True, False, True, True])
    assert index.search(["gate"], 3, allowed)[1].tolist() == [[0, -1, -1]]


@pytest.mark.parametrize("texts", [[], [""], ["", "..."]])
def test_passages_without_words_are_never_found(texts: list[str], tmp_path: Path) -> None:
    LexicalIndex.build(texts).save(tmp_path)
    index = LexicalIndex.load(tmp_path)
    assert len(index) == len(texts)
    assert rows(index, "gate", 2) == [-1, -1]


def test_a_question_without_words_finds_nothing(index: LexicalIndex) -> None:
    assert rows(index, "?!") == [-1, -1, -1]


def test_no_question_finds_no_rows(index: LexicalIndex) -> None:
    assert index.search([], 3)[1].shape == (0, 3)


def test_a_question_of_common_words_looks_at_its_rarest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    index = LexicalIndex.build(["a b"] * 10 + ["a c"])
    monkeypatch.setattr(lexical, "MAX_POSTINGS", 11)
    assert rows(index, "a b c", 1) == [10]
    assert index._ids_of("b a c") == [index._terms["c"], index._terms["b"]]  # and not "a", of eleven passages
    monkeypatch.setattr(lexical, "MAX_POSTINGS", 1)
    assert index._ids_of("b a") == [index._terms["b"]]


def test_scores_are_those_that_bm25s_computes() -> None:
    index = LexicalIndex.build(TEXTS)
    ids: dict[str, int] = {}
    texts = [[ids.setdefault(term, len(ids)) for term in terms_of(text)] for text in TEXTS]
    theirs = bm25s.BM25(k1=lexical.K1, b=lexical.B, backend="numpy")
    theirs.index((texts, ids), create_empty_token=False, show_progress=False)
    for question in ("gate", "the gate of a dam", "水門"):
        expected = theirs.get_scores_from_ids([ids[term] for term in terms_of(question)])
        scores, found = index.search([question], len(TEXTS))
        np.testing.assert_allclose(scores[0][found[0] >= 0], expected[found[0][found[0] >= 0]], rtol=1e-6)
        assert np.count_nonzero(expected) == np.count_nonzero(found[0] >= 0)


@pytest.mark.parametrize(
    "damage",
    [
        {"starts.npy": np.array([0, 1])},
        {"postings.npy": np.array([99] * 38, np.int32)},
        {"counts.npy": np.zeros(1, np.uint8)},
        {"scores.npy": np.zeros(1, np.float32)},
        {"scores.npy": np.array([{}])},
        {"terms.json": {"passages": 5}},
        {"terms.json": {"passages": 1, "terms": ["a"]}},
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path, damage: dict[str, object]) -> None:
    LexicalIndex.build(TEXTS).save(tmp_path)
    for name, value in damage.items():
        if isinstance(value, np.ndarray):
            np.save(tmp_path / name, value, allow_pickle=True)
        else:
            (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(ChecksumMismatch):
        LexicalIndex.load(tmp_path)


def test_the_share_of_a_questions_words_that_a_passage_has_goes_by_their_rarity(index: LexicalIndex) -> None:
    """ "gate" stands in two passages, "dam" and "soup" in one each; how often does not matter."""
    shares = index.word_shares("a dam, gates and nowhere: gate, gate", [2, 0, 1, 3, 2])
    assert shares[0] == shares[4]
    assert shares[:2] != [0.0, 0.0]
    assert shares[2:4] == [0.0, 0.0]
    assert index.word_shares("gate of the dam", [0]) == pytest.approx([1.0])
    with_rare, with_common = index.word_shares("soup gate", [1, 2])
    assert with_rare + with_common == pytest.approx(1.0)
    assert with_rare > with_common


def test_shares_of_no_words_and_of_no_passages(index: LexicalIndex) -> None:
    assert index.word_shares("nowhere", [0, 1]) == [0.0, 0.0]
    assert index.word_shares("gate", []) == []
