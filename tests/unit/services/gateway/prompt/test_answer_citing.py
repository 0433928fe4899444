"""A prompt's passages are kept for citing as far as a retriever takes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.prompt.answer_citing import AnswerCiting
from shared.messages import MAX_CITED_PASSAGE_BYTES, ScoredPassage

SCOPE: Any = SimpleNamespace(config=SimpleNamespace(cite_wait_ms=1.0))
MODEL = ModelIdentity("m")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("b" * (MAX_CITED_PASSAGE_BYTES - 1), True),
        ("b" * MAX_CITED_PASSAGE_BYTES, False),
        ("\u00e9" * (MAX_CITED_PASSAGE_BYTES // 2), False),
    ],
)
def test_passages_of_more_bytes_than_are_cited_are_not_asked_about(text: str, wanted: bool) -> None:
    citing = AnswerCiting(SCOPE)
    passages = [ScoredPassage("a", "a", 1.0, 0, 1), ScoredPassage("b", text, 1.0, 0, 1)]
    citing.record_prompt(MODEL, passages, (1, 2), (), "retriever-0")
    assert citing.wanted == wanted


def test_a_passage_that_is_not_in_the_prompt_takes_no_room() -> None:
    citing = AnswerCiting(SCOPE)
    passages = [
        ScoredPassage("a", "a", 1.0, 0, 1),
        ScoredPassage("b", "b" * MAX_CITED_PASSAGE_BYTES, 1.0, 0, 1),
    ]
    citing.record_prompt(MODEL, passages, (1, 0), (), "retriever-0")
    assert citing.wanted
