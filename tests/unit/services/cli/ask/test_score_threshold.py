"""`--score-threshold` of the commands that search: sent as it is, refused where no score is."""

from __future__ import annotations

import pytest

from services.cli.ask.ask_request import parse_request
from services.cli.ask.search import build_search_parser


def test_a_question_is_sent_with_it() -> None:
    _, request = parse_request(["--retrieve", "--score-threshold", "0.5", "what flows?"])
    assert request.retrieval.score_threshold == 0.5
    _, request = parse_request(["--retrieve", "what flows?"])
    assert not request.retrieval.HasField("score_threshold")


@pytest.mark.parametrize("wrong", ["-0.1", "1.01", "nan", "much"])
def test_what_is_no_score_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_search_parser().parse_args(["a", f"--score-threshold={wrong}"])
    assert "is no number from 0 to 1" in capsys.readouterr().err
