"""Which reranker a retriever has, by its configuration and by what the machine computes fast."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from services.retriever.config import RetrieverConfig
from services.retriever.reranker_choice import choose_reranker
from shared.errors import NotFound
from shared.retrieval.encoders.embedder import Embedder


class SomeEmbedder:
    """All that is asked of it before it embeds."""

    def __init__(self, *, is_native: bool) -> None:
        self.is_native = is_native


@pytest.mark.parametrize(
    ("reranker", "is_native", "name"),
    [
        ("auto", True, "late-interaction"),
        ("auto", False, ""),
        ("late-interaction", False, "late-interaction"),
        ("", True, ""),
    ],
)
def test_late_interaction_is_the_default_where_it_is_fast(reranker: str, is_native: bool, name: str) -> None:
    embedder = cast(Embedder, SomeEmbedder(is_native=is_native))
    chosen = choose_reranker(RetrieverConfig(reranker=reranker), embedder)
    assert ("" if chosen is None else chosen.name) == name


def test_anything_else_is_the_folder_of_a_cross_encoder(tmp_path: Path) -> None:
    embedder = cast(Embedder, SomeEmbedder(is_native=True))
    with pytest.raises(NotFound, match="name the folder of a Hugging Face cross-encoder"):
        choose_reranker(RetrieverConfig(reranker=str(tmp_path)), embedder)
