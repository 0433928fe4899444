"""How retrieved passages and a question become one user message.

    Context:
    [1] first passage
    [2] second passage

    Question: the question

Plain Python without dependencies, so that a service can use it without loading a model library.
"""

from __future__ import annotations

from collections.abc import Sequence

PASSAGE = "[{number}] {passage}"
RETRIEVAL_PROMPT = "Context:\n{passages}\n\nQuestion: {question}"


def retrieval_prompt(passages: Sequence[str], question: str) -> str:
    """The user message that asks `question` about `passages`, best passage first.

    Line breaks inside a passage or the question become spaces, since a line is what separates passages.
    """
    lines = (
        PASSAGE.format(number=number, passage=" ".join(passage.split()))
        for number, passage in enumerate(passages, start=1)
    )
    return RETRIEVAL_PROMPT.format(passages="\n".join(lines), question=" ".join(question.split()))
