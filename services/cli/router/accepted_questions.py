"""Read questions with what is accepted as their answer, a line of JSON each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded

MAX_QUESTIONS_BYTES = 16 << 20
"""The largest file of questions."""
MAX_QUESTIONS = 2000
"""The most questions that are asked."""
FEWEST_QUESTIONS = 20
"""The fewest: half of them chooses a threshold, the other half says what it is worth."""
WANTED = '{"text": "…", "accepted": ["a regular expression", "…"]}'


@dataclass(frozen=True, slots=True)
class AcceptedQuestion:
    """A question; an answer is right where one of `accepted` is found in it, whatever the case."""

    text: str
    accepted: tuple[re.Pattern[str], ...]

    def is_right(self, answer: str) -> bool:
        return any(pattern.search(answer) for pattern in self.accepted)


def read_questions(path: Path) -> list[AcceptedQuestion]:
    """Raises InvalidRequest that names the file and the line."""
    data = read_bounded(path, MAX_QUESTIONS_BYTES, f"the file of questions {path}", "; give another one")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the questions {path} are not UTF-8 text") from error
    found = [_question(line, f"{path}, line {at}") for at, line in enumerate(lines, 1) if line.strip()]
    if not FEWEST_QUESTIONS <= len(found) <= MAX_QUESTIONS:
        raise InvalidRequest(
            f"{path} has {len(found)} questions: give from {FEWEST_QUESTIONS} to {MAX_QUESTIONS}"
        )
    return found


def _question(line: str, place: str) -> AcceptedQuestion:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{place} is no JSON: write {WANTED}") from error
    text, accepted = (row.get("text"), row.get("accepted")) if isinstance(row, dict) else (None, None)
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequest(f"{place} has no text: write {WANTED}")
    if not isinstance(accepted, list) or not accepted:
        raise InvalidRequest(f"{place} says nothing that is accepted: write {WANTED}")
    return AcceptedQuestion(text, tuple(_pattern(each, place) for each in accepted))


def _pattern(text: object, place: str) -> re.Pattern[str]:
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"{place} accepts what is no text: write {WANTED}")
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequest(f"{place} has a wrong regular expression, {text[:60]!r}: {error}") from error
