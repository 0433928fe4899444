"""The prompt format of the demo models: what a chat looks like and how retrieved passages go into it.

A conversation is rendered by the chat template as

    <|bos|><|system|>SYSTEM<|end|><|user|>USER<|end|><|assistant|>ANSWER<|end|>

where the system part is optional. A question about retrieved passages is one user message,
`RETRIEVAL_PROMPT`:

    Context:
    [1] first passage
    [2] second passage

    Question: the question

The answer repeats the sentence of the context that holds the fact asked for.
Plain Python without dependencies, so that a service can use it without loading a model library.
"""

from __future__ import annotations

from collections.abc import Sequence

BOS = "<|bos|>"
END = "<|end|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (PAD, BOS, END, SYSTEM, USER, ASSISTANT)

SYSTEM_TEXT = "Answer with the sentence of the context that fits the question."
PASSAGE = "[{number}] {passage}"
RETRIEVAL_PROMPT = "Context:\n{passages}\n\nQuestion: {question}"

CHAT_TEMPLATE = (
    "{{ '" + BOS + "' }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Unknown role ' + message['role'] + ': use system, user or assistant.') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '" + END + "' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def retrieval_prompt(passages: Sequence[str], question: str) -> str:
    """The user message that asks `question` about `passages`, best passage first.

    Line breaks inside a passage or the question become spaces, since a line is what separates passages.
    """
    lines = (
        PASSAGE.format(number=number, passage=" ".join(passage.split()))
        for number, passage in enumerate(passages, start=1)
    )
    return RETRIEVAL_PROMPT.format(passages="\n".join(lines), question=" ".join(question.split()))


def chat_text(user: str, system: str | None = None) -> str:
    """What the chat template renders for one user message, up to where the answer begins."""
    head = "" if system is None else f"{SYSTEM}{system}{END}"
    return f"{BOS}{head}{USER}{user}{END}{ASSISTANT}"
