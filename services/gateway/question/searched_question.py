"""Choose what retrieval searches for: the client's own query, else the question, as its rewriter leaves
it."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.question.question_rewriter import QuestionRewriter
from services.gateway.request.prompt_passages import joined_warnings
from services.gateway.request.request import Request
from shared.deadline import Deadline
from shared.messages import MAX_QUERY_CHARS

TOO_LONG = (
    f"the question is longer than {MAX_QUERY_CHARS} characters: what is behind them was not searched for; "
    "retrieval.query says what to search for in its place"
)


@dataclass(frozen=True, slots=True)
class SearchedQuestion:
    """`warning` is what its client should know of it, "" for nothing."""

    query: str
    warning: str = ""


async def searched_question(request: Request, rewriter: QuestionRewriter, end: Deadline) -> SearchedQuestion:
    """Return what to search for, at most MAX_QUERY_CHARS of it, never later than `end`."""
    if request.retrieval.query:
        return _cut(request.retrieval.query)
    history = tuple((turn.role, turn.content) for turn in request.chat[:-1])
    rewritten = await rewriter.rewrite(request.question, history, end)
    cut = _cut(rewritten.text)
    return SearchedQuestion(cut.query, joined_warnings(rewritten.warning, cut.warning))


def _cut(query: str) -> SearchedQuestion:
    """Cut a long question to its beginning, as the encoder reads it too; one that fits is left as it is."""
    if len(query) <= MAX_QUERY_CHARS:
        return SearchedQuestion(query)
    return SearchedQuestion(query.lstrip()[:MAX_QUERY_CHARS], TOO_LONG)
