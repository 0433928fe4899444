"""A head that reads words estimates here, at once: no retriever is looked for."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.prompt.difficulty_asker import DifficultyAsker
from services.gateway.scope.budget import Budget
from shared.files.difficulty_head import DifficultyHead
from shared.files.word_features import MAX_READ_CHARS, WORD_FEATURES, WORD_PLACES
from tests.support.text_request import text_request

HEAD = DifficultyHead(WORD_FEATURES, array("f", [3.0] * WORD_PLACES), -1.0)
NOBODY: Any = object()
"""A context of which nothing can be asked."""


@pytest.mark.parametrize("text", ["Why does it rain?", "why " * MAX_READ_CHARS])
async def test_a_question_is_estimated_by_its_words_and_nobody_is_asked(text: str) -> None:
    request = text_request(text=text)
    found = await DifficultyAsker(NOBODY).estimate(request, Budget.of(request, GatewayConfig(), None), HEAD)
    assert found.probability == pytest.approx(HEAD.probability_of(text))
    assert found.note == ""


async def test_what_has_no_words_is_neither_hard_nor_easy() -> None:
    request = text_request(text=" ")
    found = await DifficultyAsker(NOBODY).estimate(request, Budget.of(request, GatewayConfig(), None), HEAD)
    assert (found.probability, found.note) == (None, "it has no question to be told hard or easy")
