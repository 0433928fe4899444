"""Scores of rankings by hand, and sets in the form of BEIR."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.bench.ranking_scores import ndcg_difference, ranking_scores
from tests.bench.retrieval_sets import beir_set


def test_a_document_that_is_found_second_is_worth_less_than_one_that_is_found_first() -> None:
    scores = ranking_scores([["b", "a"], ["a"]], [{"a": 1.0}, {"a": 1.0}])
    assert scores.ndcgs == pytest.approx((1 / math.log2(3), 1.0))
    assert (scores.reciprocal_rank, scores.recall_5) == (0.75, 1.0)


def test_of_several_documents_the_better_ones_count_for_more() -> None:
    gains = {"a": 3.0, "b": 1.0}
    best, worse = ranking_scores([["a", "b"]], [gains]), ranking_scores([["b", "a"]], [gains])
    assert best.ndcg == pytest.approx(1.0)
    assert worse.ndcg == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))


def test_a_document_that_comes_again_counts_where_it_came_first() -> None:
    assert ranking_scores([["b", "b", "a"]], [{"a": 1.0}]).reciprocal_rank == 0.5


def test_the_bounds_of_a_difference_are_around_it() -> None:
    gains = [{"a": 1.0}] * 4
    first = ranking_scores([["b", "a"], ["b", "a"], ["a"], ["a"]], gains)
    then = ranking_scores([["a"]] * 4, gains)
    higher, low, high = ndcg_difference(first, then)
    assert higher == pytest.approx((1 - 1 / math.log2(3)) / 2)
    assert 0 <= low < higher < high
    assert ndcg_difference(first, first) == (0.0, 0.0, 0.0)


def test_a_set_in_beirs_form_has_the_questions_that_have_an_answer(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "title": "", "text": "a gate"}\n')
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "1", "text": "gate?"}\n{"_id": "2", "text": "wall?"}\n{"_id": "3", "text": "roof?"}\n'
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\td\t2\n2\td\t0\n")
    found = beir_set(tmp_path)
    assert found.questions == ("gate?",)
    assert found.gains == ({"corpus.jsonl#d": 2.0},)
