"""Make one user message of retrieved passages and a question.

A model is asked in the form that it was taught; most were taught none and get the default one:

    Answer the question from the passages alone, in as few words as possible. If they do not tell, say: That
    is not in the documents.

    [1] first passage
    [2] second passage

    Question: the question

The instruction is part of the user's message, so that it reaches models whose chat template has no system
turn, and stands beside a client's own system turn. Plain Python without dependencies, so that a service can
use it without loading a model library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NOT_IN_DOCUMENTS = "That is not in the documents."
"""The sentence that a model is told to say where the passages do not answer."""

PASSAGE = "[{number}] {passage}"
INSTRUCTED_FORM = "instructed"
CONTEXT_FORM = "context"
"""The form of the built-in models."""

RETRIEVAL_FORMS: Mapping[str, str] = {
    INSTRUCTED_FORM: (
        "Answer the question from the passages alone, in as few words as possible. "
        f"If they do not tell, say: {NOT_IN_DOCUMENTS}\n\n{{passages}}\n\nQuestion: {{question}}"
    ),
    CONTEXT_FORM: "Context:\n{passages}\n\nQuestion: {question}",
}


def retrieval_prompt(passages: Sequence[str], question: str, form: str = INSTRUCTED_FORM) -> str:
    """The user message that asks `question` about `passages`, which stand in it in this order.

    What does not depend on the passages comes first, what depends on the question last: prompts with the same
    passages in the same order are the same up to the question. Line breaks inside a passage or the question
    become spaces, since a line is what separates passages.
    """
    lines = (passage_line(number, passage) for number, passage in enumerate(passages, start=1))
    return RETRIEVAL_FORMS[form].format(passages="\n".join(lines), question=" ".join(question.split()))


def passage_line(number: int, passage: str) -> str:
    """A passage as it stands in the message, under the number by which an answer cites it."""
    return PASSAGE.format(number=number, passage=" ".join(passage.split()))
