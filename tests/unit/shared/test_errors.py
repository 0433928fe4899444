"""Sentences of errors: short enough for the bus and a log, and text."""

from __future__ import annotations

import pytest

from shared.config.fields import MAX_PROBLEMS_CHARS, ConfigError
from shared.errors import MAX_SENTENCE_CHARS, InvalidRequest, PenstockError


@pytest.mark.parametrize(
    ("error", "most"), [(InvalidRequest, MAX_SENTENCE_CHARS), (ConfigError, MAX_PROBLEMS_CHARS)]
)
def test_a_long_sentence_loses_its_middle(error: type[PenstockError], most: int) -> None:
    whole = "b" + "x" * (most - 10) + ": send it"
    assert error(whole).message == whole
    cut = error(whole + "!").message
    assert len(cut) <= most + 3
    assert cut.startswith("bxxx")
    assert " … " in cut
    assert cut.endswith(": send it!")
    assert str(error(whole + "!")) == cut


def test_half_of_a_character_is_written_as_its_number() -> None:
    assert InvalidRequest("no model \ud800 here: \u00fc").message == "no model \\ud800 here: \u00fc"
