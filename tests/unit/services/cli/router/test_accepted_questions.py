"""Questions with what is accepted are read from a file, or refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.router.accepted_questions import FEWEST_QUESTIONS, MAX_QUESTIONS, read_questions
from shared.errors import InvalidRequest

GOOD = {"text": "How often?", "accepted": [r"\b250 ?ms\b", "a quarter of a second"]}


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Every 250 MS.", True), ("A Quarter of a Second", True), ("each 1250 ms", False), ("", False)],
)
def test_an_answer_is_right_where_something_accepted_is_in_it(
    answer: str, right: bool, tmp_path: Path
) -> None:
    first, *_ = read_questions(written(tmp_path / "rows", [GOOD] * FEWEST_QUESTIONS))
    assert first.is_right(answer) == right


@pytest.mark.parametrize("count", [FEWEST_QUESTIONS, MAX_QUESTIONS])
def test_as_many_as_are_allowed_are_read(count: int, tmp_path: Path) -> None:
    assert len(read_questions(written(tmp_path / "rows", ["", *[GOOD] * count]))) == count


@pytest.mark.parametrize("count", [FEWEST_QUESTIONS - 1, MAX_QUESTIONS + 1])
def test_fewer_and_more_are_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"has {count} questions: give from 20 to 2000"):
        read_questions(written(tmp_path / "rows", [GOOD] * count))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "line 2 is no JSON"),
        ("[" * 100_000, "line 2 is no JSON"),
        ([], "line 2 has no text"),
        ({"text": " ", "accepted": ["a"]}, "line 2 has no text"),
        ({"text": "a"}, "line 2 says nothing that is accepted"),
        ({"text": "a", "accepted": [""]}, "line 2 accepts what is no text"),
        ({"text": "a", "accepted": ["("]}, "line 2 has a wrong regular expression"),
    ],
)
def test_what_is_no_question_is_named_with_its_line(row: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read_questions(written(tmp_path / "rows", [GOOD, row]))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="none cannot be read"):
        read_questions(tmp_path / "none")
