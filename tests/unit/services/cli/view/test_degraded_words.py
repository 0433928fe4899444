"""Every word for what was left out is told in words."""

from __future__ import annotations

import pytest

from services.cli.view.degraded_words import degraded_words
from services.gateway.scope.report import LEFT_OUT


@pytest.mark.parametrize("degraded", LEFT_OUT)
def test_what_was_left_out_is_told_in_words(degraded: str) -> None:
    assert "passages" in degraded_words(degraded)


def test_a_word_of_a_newer_gateway_stays() -> None:
    assert degraded_words("citations") == "citations"
