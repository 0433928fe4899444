"""A batch of questions is searched at once, and each gets what it asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from services.retriever.searcher import Searcher
from shared.messages import Retrieve
from shared.retrieval.embedder import Embedder
from shared.retrieval.index import PassageIndex
from shared.retrieval.passage_table import IndexedFile
from shared.retrieval.passages import Passage
from shared.retrieval.vectors import Vectors

TEXTS = ("one", "two", "three", "four")


class PlayedEmbedder:
    """A question is the number of the passage that it is about."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.eye(len(TEXTS), dtype=np.float32)[[int(text) for text in texts]]


@pytest.mark.parametrize("wanted", [(1, 3), (3, 1)], ids=["few-first", "many-first"])
def test_questions_of_one_batch_get_as_many_passages_as_each_asked_for(wanted: tuple[int, int]) -> None:
    passages = tuple(Passage("", text) for text in TEXTS)
    index = PassageIndex((IndexedFile("file", "key", passages),), np.eye(len(TEXTS), dtype=np.float32))
    searcher = Searcher(cast(Embedder, PlayedEmbedder()), index)
    answers = searcher.search_passages(
        [Retrieve(str(number), k, may_degrade=True) for number, k in enumerate(wanted)]
    )
    assert [len(answer.passages) for answer in answers] == list(wanted)
    assert [answer.passages[0].text for answer in answers] == ["one", "two"]
