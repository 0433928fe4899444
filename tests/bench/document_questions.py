"""The questions about the documentation pages, and whether an answer is right (see questions/README.md)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = Path(__file__).parent / "questions" / "documentation.jsonl"
DEVELOPMENT_NAME = "development"
DEVELOPMENT = QUESTIONS.with_name("development.jsonl")
"""Other questions about the same pages: whatever is chosen is chosen by these."""
YES_NO_NAME = "yes_no"
YES_NO = QUESTIONS.with_name("yes_no.jsonl")
"""Questions for yes or no about the same pages, all held out."""
JUDGED_WORDS = 50
"""The words of an answer that are judged; what is said after them is no answer."""

_REFUSAL = re.compile(
    r"\bnot (?:\w+ )?(?:in|part of|from) (?:the|these|any|this) (?:\w+ )?(?:document|passage|text|context)"
    r"|\b(?:document|passage|text|context)s? (?:do(?:es)? not|don't|doesn't) "
    r"(?:say|tell|mention|specify|state|provide|contain|give|answer|explicitly)"
    r"|\bnot (?:explicitly |directly )?(?:mentioned|stated|specified|provided|given)\b"
    r"|\bno (?:information|mention)\b"
)
_MARKS = str.maketrans("", "", "`*_")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """`accepted` are regular expressions, none where the documents do not answer."""

    id: str
    question: str
    page: str
    answer: str
    accepted: tuple[str, ...]
    held_out: bool

    @property
    def is_answerable(self) -> bool:
        return bool(self.accepted)


def read_questions(half: str) -> list[DocumentQuestion]:
    """Those of a half, `open` or `held_out`, or `all`; or those of `development` or `yes_no`."""
    file = {DEVELOPMENT_NAME: DEVELOPMENT, YES_NO_NAME: YES_NO}.get(half, QUESTIONS)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    questions = [DocumentQuestion(**{**row, "accepted": tuple(row["accepted"])}) for row in rows]
    whole = half in ("all", DEVELOPMENT_NAME, YES_NO_NAME)
    return [question for question in questions if whole or question.held_out == (half == "held_out")]


def judged_text(answer: str) -> str:
    """What of an answer is looked at, in the form that expressions are written for."""
    words = _THOUSANDS.sub("", answer.translate(_MARKS)).lower().split()
    return " ".join(words[:JUDGED_WORDS])


def is_refusal(answer: str) -> bool:
    """Whether it says that the documents do not tell."""
    return _REFUSAL.search(judged_text(answer)) is not None


def is_right(question: DocumentQuestion, answer: str) -> bool:
    """Whether the answer has what was asked for, or refuses what cannot be answered."""
    if is_refusal(answer) or not question.is_answerable:
        return is_refusal(answer) and not question.is_answerable
    return any(re.search(accepted, judged_text(answer)) for accepted in question.accepted)
