"""A newer index takes the place of the one that serves; one that cannot be used does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from services.retriever.index_follower import IndexFollower
from shared.retrieval.index import PassageIndex
from tests.support.small_index import SMALL_INDEX_MODEL, save_small_index


@pytest.fixture
def replaced() -> list[PassageIndex]:
    return []


@pytest.fixture
def follower(tmp_path: Path, replaced: list[PassageIndex]) -> IndexFollower:
    return IndexFollower(tmp_path, save_small_index(tmp_path, "old"), SMALL_INDEX_MODEL, replaced.append)


def texts(index: PassageIndex) -> list[str]:
    return [index.table.passage(row).text for row in range(len(index))]


def test_the_index_that_serves_is_not_replaced_by_itself(
    follower: IndexFollower, replaced: list[PassageIndex]
) -> None:
    follower.look()
    assert replaced == []


def test_a_newer_index_replaces_it_once(
    tmp_path: Path, follower: IndexFollower, replaced: list[PassageIndex]
) -> None:
    save_small_index(tmp_path, "new", "newer")
    follower.look()
    follower.look()
    assert [texts(index) for index in replaced] == [["new", "newer"]]


def test_one_that_cannot_be_used_is_told_once_and_the_next_one_is_taken(
    tmp_path: Path, follower: IndexFollower, replaced: list[PassageIndex]
) -> None:
    save_small_index(tmp_path, "other", model="another/1")
    with structlog.testing.capture_logs() as logs:
        follower.look()
        follower.look()
    assert [(entry["event"], "another embedding model" in entry["error"]) for entry in logs] == [
        ("index_unusable", True)
    ]
    assert replaced == []
    save_small_index(tmp_path, "new")
    follower.look()
    assert [texts(index) for index in replaced] == [["new"]]
