"""Whether an earlier answer can be given: all of it at once, with where its passages stood."""

from __future__ import annotations

import pytest

from services.gateway.prompt.cached_response import is_usable
from shared.messages import KeptResponse, ResponseFound, ScoredPassage, pack_ids

PASSAGE = ScoredPassage("a.md", "text", 1.0)


def found(num_tokens: int, passages: int = 0, places: int = 0) -> ResponseFound:
    kept = KeptResponse(
        request_id="r",
        model="m",
        seed=1,
        prompt_tokens=3,
        token_ids=pack_ids(range(num_tokens)),
        text="x",
        finish="stop",
        passages=(PASSAGE,) * passages,
        prompt_places=tuple(range(places)),
    )
    return ResponseFound(kept, age_ms=1, similarity=1.0)


@pytest.mark.parametrize(("num_tokens", "usable"), [(0, True), (8, True), (9, False)])
def test_an_answer_is_given_if_all_its_tokens_may_be_buffered(num_tokens: int, usable: bool) -> None:
    assert is_usable(found(num_tokens), max_buffered_tokens=8) is usable


@pytest.mark.parametrize(("places", "usable"), [(2, True), (1, False), (3, False)])
def test_an_answer_is_given_if_every_passage_has_its_place(places: int, usable: bool) -> None:
    assert is_usable(found(1, passages=2, places=places), max_buffered_tokens=8) is usable
